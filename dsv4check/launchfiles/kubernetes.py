"""Launches in Kubernetes manifests: every pod template below any object, KServe models, scripts in ConfigMaps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import yaml

from dsv4check.launchfiles.kserve import kserve_launches
from dsv4check.launchfiles.kubernetes_containers import Surroundings, container_launches, heads_of
from dsv4check.launchfiles.kubernetes_gpus import gpus_of_resources
from dsv4check.launchfiles.records import Context, Launch, Stated
from dsv4check.launchfiles.text_servers import text_servers
from dsv4check.launchfiles.yaml_nodes import Document, get, items, pairs, text_of

_MAX_DEPTH: Final = 300
_CORE: Final = re.compile(r"v1|(?:apps|batch|autoscaling|policy)/v\d\w*|[a-z.]+\.k8s\.io/v\d\w*")
_NO_SCRIPT: Final = re.compile(r"\.(?:ya?ml|json|toml|ini|conf|cfg|py|md|txt|jinja2?|j2|tmpl|tpl|xml|html)$")
_COUNT: Final = re.compile(r"[1-9]\d{0,4}")


def kubernetes_launches(document: Document, context: Context) -> list[Launch] | None:
    """The launches of an object; None for a document that is none, or one of a kind whose launches are elsewhere."""
    root = document.root
    if not isinstance(root, (yaml.MappingNode, yaml.SequenceNode)):
        return None
    found = list(_Reader(document, context).read(root, Surroundings("pod template"), 0))
    if found:
        return found
    version = text_of(get(root, "apiVersion"))
    return [] if version and get(root, "kind") is not None and _CORE.fullmatch(version) else None


class _Reader:
    """Walks an object once, with what stands around each part."""

    def __init__(self, document: Document, context: Context) -> None:
        self._document = document
        self._context = context
        self._seen: set[int] = set()

    def read(self, node: yaml.Node, around: Surroundings, depth: int) -> Iterator[Launch]:
        """The launches below a node."""
        if isinstance(node, yaml.ScalarNode) or id(node) in self._seen or depth > _MAX_DEPTH:
            return
        self._seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            for item in node.value:
                yield from self.read(item, around, depth + 1)
            return
        entries = pairs(node)
        by_name = {key.value: value for key, value in entries}
        around = self._object(node, by_name, around)
        if text_of(by_name.get("kind")) in ("ConfigMap", "Secret"):
            yield from self._scripts(node, around)
            return
        if "extraPodSpec" in by_name:
            around = self._dynamo(by_name, around)
        elif "podTemplate" in by_name:
            path = text_of(by_name.get("name")) or around.path
            around = replace(around, path=path, nodes=self._multinode(by_name), spread=True)
        elif (lws := by_name.get("leaderWorkerTemplate")) is not None:
            around = replace(around, nodes=self._count(get(lws, "size")) or around.nodes)
        elif "headGroupSpec" in by_name:
            around = replace(around, nodes=self._ray_nodes(node))
        elif "volumeClaimTemplates" not in by_name and text_of(by_name.get("name")) is None:
            yield from kserve_launches(self._document, node, around, self._context, self._seen)
        yield from self._pod(node, by_name, around)
        in_services = isinstance(by_name.get("services"), yaml.MappingNode)
        for key, value in entries:
            if key.value in ("initContainers", "containers", "metadata", "status"):
                continue
            if key.value == "services" and in_services:
                for name, service in pairs(value):
                    yield from self.read(service, replace(around, path=name.value), depth + 1)
                continue
            yield from self.read(value, around, depth + 1)

    def _object(self, node: yaml.Node, by_name: dict[str, yaml.Node], around: Surroundings) -> Surroundings:
        kind = text_of(by_name.get("kind"))
        if not kind or "apiVersion" not in by_name:
            return around
        metadata = by_name.get("metadata")
        name = text_of(get(metadata, "name")) or text_of(get(metadata, "generateName"))
        return Surroundings(f"{kind}/{name}" if name else kind)

    def _pod(self, node: yaml.Node, by_name: dict[str, yaml.Node], around: Surroundings) -> Iterator[Launch]:
        containers = items(by_name.get("containers"))
        main = by_name.get("mainContainer")
        for container in (*containers, *(() if main is None else (main,))):
            if not isinstance(container, yaml.MappingNode) or id(container) in self._seen:
                continue
            self._seen.add(id(container))
            yield from container_launches(self._document, container, node, around, self._context)

    def _dynamo(self, by_name: dict[str, yaml.Node], around: Surroundings) -> Surroundings:
        """A service of Dynamo's v1alpha1: variables, GPUs and nodes stand beside the pod."""
        envs = tuple(by_name[name] for name in ("envs",) if name in by_name)
        gpus = gpus_of_resources(self._document, by_name.get("resources"))
        return replace(around, nodes=self._multinode(by_name), gpus=gpus, env=envs, spread=True)

    def _multinode(self, by_name: dict[str, yaml.Node]) -> Stated | None:
        return self._count(get(by_name.get("multinode"), "nodeCount"))

    def _count(self, node: yaml.Node | None) -> Stated | None:
        text = text_of(node)
        return None if text is None or not _COUNT.fullmatch(text) else self._document.stated(node)

    def _ray_nodes(self, node: yaml.Node) -> Stated | None:
        """Pods of a Ray cluster that have GPUs, stated where the workers' number is."""
        head = self._asks_for_gpus(get(node, "headGroupSpec"))
        total, place = int(head), None
        for group in items(get(node, "workerGroupSpecs")):
            replicas = self._count(get(group, "replicas") or get(group, "minReplicas"))
            if replicas is not None and self._asks_for_gpus(group):
                total += int(replicas.value)
                place = place or replicas.span
        return None if place is None else Stated(str(total), place)

    def _asks_for_gpus(self, group: yaml.Node | None) -> bool:
        containers = items(get(group, "template", "spec", "containers"))
        return any(gpus_of_resources(self._document, get(container, "resources")) for container in containers)

    def _scripts(self, node: yaml.Node, around: Surroundings) -> Iterator[Launch]:
        """Scripts among the files of a ConfigMap."""
        for key, value in (*pairs(get(node, "data")), *pairs(get(node, "stringData"))):
            text = text_of(value)
            if text is None or "vllm" not in text or _NO_SCRIPT.search(key.value):
                continue
            heads = heads_of(self._document, node)
            for server in text_servers(self._document.located(value), {}, self._context):
                yield Launch("kubernetes", f"{around.label} {key.value}", server, heads, image=server.image)
