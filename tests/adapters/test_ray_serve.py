"""The worker on a Ray cluster of this machine: two nodes, of which one is killed under load."""

import contextlib
import json
import threading
from collections import Counter
from importlib.util import find_spec

import httpx
import pytest
from ray_folders import own_ray_folder
from tiny_models import tiny_gguf
from waiting import free_port
from waiting import until as until_within

from bitnet.server.exchange import last_event
from bitnet.server.refusals import Refused

pytestmark = [
    pytest.mark.skipif(
        not getattr(find_spec("ray"), "origin", None), reason="pip install 'bitnet-xtask[ray]'"
    ),
    pytest.mark.filterwarnings("ignore"),  # Ray warns of its own code
]
TEMPLATE = "{% for m in messages %}{{ m.role }}.{{ m.content }}.{% endfor %}assistant."
BODY = {"prompt": "abc", "max_tokens": 30, "temperature": 0}
CLIENTS = 6
PATIENCE_S = 600  # a busy machine starts a node and its replica in minutes


@pytest.fixture(scope="module")
def own_folder():
    with own_ray_folder():
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("ray") / "tiny.gguf"
    tiny_gguf(path, **{"tokenizer.chat_template": TEMPLATE, "llama.context_length": 1024})
    return path


@pytest.fixture(scope="module")
def cluster(model, own_folder):
    """The cluster, its two nodes with a replica each, and an HTTP client of the application.

    The third node, the head, runs the driver and the proxy and has no room for a replica.
    """
    import ray
    from ray import serve
    from ray.cluster_utils import Cluster

    from bitnet.adapters import ray_serve

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    others = [nodes.add_node(num_cpus=1), nodes.add_node(num_cpus=1)]
    try:
        ray.init(address=nodes.address, log_to_driver=False)
        port = free_port()
        # All nodes here have one address: a proxy of each would share the port.
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
        serve.run(ray_serve.app({"model": str(model), "min_replicas": "2", "max_replicas": "2"}))
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as client:
            yield nodes, others, client
    finally:
        serve.shutdown()
        ray.shutdown()
        nodes.shutdown()


def until(condition):
    """Value of *condition* once it holds."""
    return until_within(condition, patience_s=PATIENCE_S)


def kill(nodes, node):
    """Kill *node*, which holds one of two replicas, and wait until its replica is gone."""
    before = set(_replicas())
    nodes.remove_node(node, allow_graceful=False)
    until(lambda: len(set(_replicas()) & before) == 1)


def on_two_nodes():
    """True if each of two nodes has a replica that lives."""
    return len(set(_replicas().values())) == 2


def _replicas():
    """Node id of each replica that is alive, by the replica's actor id."""
    from ray.util.state import list_actors
    from ray.util.state.exception import RayStateApiException

    filters = [("class_name", "=", "ServeReplica:default:Replica"), ("state", "=", "ALIVE")]

    def ask():
        with contextlib.suppress(RayStateApiException):  # on a busy machine it times out
            # In a list, so that an empty dictionary counts as an answer, too.
            return [{actor.actor_id: actor.node_id for actor in list_actors(filters=filters)}]
        return None

    (nodes_by_replica,) = until(ask)
    return nodes_by_replica


def test_the_cluster_answers_as_one_worker(cluster):
    *_, client = cluster
    whole = client.post("/v1/completions", json=BODY).json()
    assert whole["choices"][0]["text"]
    with client.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as reply:
        lines = [line for line in reply.iter_lines() if line.startswith("data: {")]
    parts = [json.loads(line[6:])["choices"][0]["text"] for line in lines]  # behind "data: "
    assert "".join(parts) == whole["choices"][0]["text"]
    assert len(parts) > 1
    wrong = client.post("/v1/completions", json=BODY | {"max_tokens": -7})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "max_tokens")
    assert client.get("/health/ready").json()["status"] == "ready"


def test_requests_with_a_common_prefix_stay_on_one_replica(cluster):
    *_, client = cluster

    def worker_of(prompt):
        body = {"prompt": prompt, "max_tokens": 1}
        return client.post("/v1/inference", json=body).json()["worker_id"]

    def stays(tries=iter(range(1000))):
        """True if 20 continuations of a fresh prompt go to the replica that had it first.

        The requests in between give Ray time to tell the ``Door`` which replica holds the prefix.
        """
        prefix = f"{next(tries):03}" + "a" * 300
        first = worker_of(prefix)
        for _ in range(60):
            worker_of("short")
        return {worker_of(prefix + "b" * more) for more in range(20)} == {first}

    # Requests routed at random to two replicas would do so once in 2**20 attempts.
    until(stays)


def test_a_stream_of_a_killed_node_ends_with_an_error_and_never_as_if_it_were_whole(cluster):
    nodes, others, client = cluster
    until(on_two_nodes)
    body = BODY | {"max_tokens": 900}
    expected = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
    busy_clients = []  # the client of each line that has arrived
    statuses = set()
    streams = []
    done = threading.Event()

    def read(name):
        with httpx.Client(base_url=client.base_url, timeout=PATIENCE_S) as own:
            while not done.is_set():
                with own.stream("POST", "/v1/completions", json=body | {"stream": True}) as reply:
                    statuses.add(reply.status_code)
                    lines = []
                    for line in reply.iter_lines():
                        lines.append(line)
                        busy_clients.append(name)
                streams.append([line[6:] for line in lines if line.startswith("data: ")])

    threads = [threading.Thread(target=read, args=(at,)) for at in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: set(busy_clients) == set(range(CLIENTS)))
        # If all streams of a node end before the node is dead, none is cut: kill another node.
        while not cut_streams(streams):
            until(on_two_nodes)
            kill(nodes, others.pop(0))
            others.append(nodes.add_node(num_cpus=1))
            count = len(streams)
            until(lambda count=count: len(streams) > count + CLIENTS)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert statuses == {200}
    n_cut = 0
    for events in streams:
        last = events[-1]
        parts = [json.loads(event) for event in events if event != "[DONE]"]
        text = "".join(part["choices"][0]["text"] for part in parts if "choices" in part)
        if last == "[DONE]":
            assert text == expected
            continue
        n_cut += 1
        assert "was lost" in parts[-1]["error"]["message"]
        assert expected.startswith(text)
    assert n_cut


def cut_streams(streams):
    """Those of *streams* that do not end with ``[DONE]``, as whole ones do."""
    return [events for events in list(streams) if events[-1:] != ["[DONE]"]]


@pytest.mark.parametrize(
    ("path", "begins"),
    [
        ("/v1/chat/completions", 'data: {"error":{"message":"'),
        ("/v1/messages", 'event: error\ndata: {"type":"error","error":{'),
        ("/api/chat", '{"error":"'),
        ("/v1/responses", 'event: error\ndata: {"type":"error","sequence_number":7,'),
        ("/completion", 'data: {"error":{"code":502,'),
    ],
)
def test_the_last_event_of_a_cut_stream_has_the_form_of_its_dialect(path, begins):
    # Seven events were sent before it; events of the Responses API have numbers, from 0 on.
    assert last_event(path, Refused(502, "lost"), 7).startswith(begins)


def test_a_killed_node_loses_no_request_and_answers_none_twice(cluster):
    nodes, others, client = cluster
    until(on_two_nodes)
    expected = client.post("/v1/completions", json=BODY).json()["choices"][0]["text"]
    sent = Counter()
    replies = []
    done = threading.Event()

    def ask(name):
        with httpx.Client(base_url=client.base_url, timeout=PATIENCE_S) as own:
            while not done.is_set():
                sent[name] += 1
                headers = {"X-Request-ID": f"{name}-{sent[name]}"}
                reply = own.post("/v1/completions", json=BODY, headers=headers)
                replies.append((reply.headers.get("x-request-id"), reply))

    threads = [threading.Thread(target=ask, args=(f"client{at}",)) for at in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: len(replies) > 50)
        kill(nodes, others[0])
        count = len(replies)
        until(lambda: len(replies) > count + 100)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    failed = [(reply.status_code, reply.text[:500]) for _, reply in replies if reply.is_error]
    assert not failed, Counter(failed)
    assert {reply.json()["choices"][0]["text"] for _, reply in replies} == {expected}
    # Each request has an id of its own, and each id came back exactly once.
    assert len({name for name, _ in replies}) == len(replies) == sum(sent.values())


def test_requests_beyond_the_full_replicas_and_their_queue_are_refused(cluster, model):
    from ray import serve

    from bitnet.adapters import ray_serve

    *_, client = cluster
    # One replica with room for two requests, so that two more may wait.
    serve.run(ray_serve.app({"model": str(model), "max_batch": "1", "queue": "1"}))
    replies = []

    def ask():
        with httpx.Client(base_url=client.base_url, timeout=PATIENCE_S) as own:
            replies.append(own.post("/v1/completions", json=BODY | {"max_tokens": 900}))

    threads = [threading.Thread(target=ask) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {reply.status_code for reply in replies} == {200, 429}
    for reply in replies:
        if reply.status_code == 429:
            error = reply.json()["error"]
            assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
            assert reply.headers["retry-after"] == "1"
    assert client.post("/v1/completions", json=BODY).status_code == 200


@pytest.mark.parametrize(
    ("args", "said"),
    [({}, "model is missing"), ({"model": "a", "replicas": "2"}, "replicas is not an option"),
     ({"model": "a", "queue": "x"}, "an option is not a whole number"),
     ({"model": "a", "max_batch": "0"}, "max_batch is 0, expected at least 1"),
     ({"model": "a", "queue": "-8"}, "queue is -8, expected at least 1"),
     ({"model": "a", "drain": "-1"}, "drain is -1, expected at least 0")],
)  # fmt: skip
def test_wrong_options_are_refused(args, said):
    from bitnet.adapters import ray_serve
    from bitnet.base.errors import UsageError

    with pytest.raises(UsageError, match=said):
        ray_serve.app(args)
