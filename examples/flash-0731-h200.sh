# Eight H200, one replica, DSpark drafting.
vllm serve deepseek-ai/DeepSeek-V4-Flash-0731 \
  --tensor-parallel-size 8 --enable-expert-parallel \
  --max-model-len 262144 \
  --speculative-config '{"method": "dspark", "num_speculative_tokens": 5}' \
  --tokenizer-mode deepseek_v4 --reasoning-parser deepseek_v4 \
  --tool-call-parser deepseek_v4 --enable-auto-tool-choice
