"""Does it fit, and how much context does it buy: the memory of one GPU of a launch.

``weights`` says what each GPU holds, ``costs`` what the start takes beside it (ranges, with their source),
``cache_plan`` how that release divides what is left into blocks, ``fit`` puts them together. Weights and plan are
exact, costs are estimates, so the answers are ranges whose records say which part is which.
"""
