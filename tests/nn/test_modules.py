"""The modules as drop-in torch.nn norms."""

import copy
import io
import pickle

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from evenkeel import InvalidArgumentError, nn
from evenkeel import functional as F

TENSORS = {"1d": (4, 6, 5), "2d": (4, 6, 5, 3), "3d": (4, 6, 5, 3, 2)}
BATCH_NORMS = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d")
INSTANCE_NORMS = ("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d")
LAZY_NORMS = (
    "LazyBatchNorm1d",
    "LazyBatchNorm2d",
    "LazyBatchNorm3d",
    "LazyInstanceNorm1d",
    "LazyInstanceNorm2d",
    "LazyInstanceNorm3d",
)


def on(shape, build):
    return pytest.param(shape, build, id=repr(build(torch.nn)))


EAGER = [
    on((4, 6), lambda m: m.LayerNorm(6)),
    on((4, 5, 6), lambda m: m.LayerNorm((5, 6), eps=1e-3, bias=False)),
    on((4, 6), lambda m: m.LayerNorm(6, elementwise_affine=False)),
    on((4, 6), lambda m: m.RMSNorm(6)),
    on((4, 6), lambda m: m.RMSNorm([6], eps=1e-6, elementwise_affine=False)),
    on((4, 6, 5), lambda m: m.GroupNorm(3, 6)),
    on((4, 6), lambda m: m.BatchNorm1d(6)),
    on((4, 6, 5), lambda m: m.BatchNorm1d(6, momentum=None)),
    on((4, 6, 5), lambda m: m.BatchNorm1d(6, affine=False, track_running_stats=False)),
    *(on(TENSORS[n[-2:]], lambda m, n=n: getattr(m, n)(6, momentum=0.3)) for n in BATCH_NORMS),
    *(on(TENSORS[n[-2:]], lambda m, n=n: getattr(m, n)(6)) for n in INSTANCE_NORMS),
    on((4, 6, 5), lambda m: m.InstanceNorm1d(6, affine=True, track_running_stats=True)),
    on((6, 5), lambda m: m.InstanceNorm1d(6, affine=True, track_running_stats=True)),
    *(on(TENSORS[n[-2:]], lambda m, n=n: getattr(m, n)()) for n in LAZY_NORMS),
    on((4, 6, 5, 3), lambda m: m.LocalResponseNorm(2)),
]


@pytest.mark.parametrize(("shape", "build"), EAGER)
def test_drop_in(shape, build):
    """Same values, state_dict, type and state after training steps, in both modes, loadable both ways."""
    mine, theirs = build(nn), build(torch.nn)
    assert isinstance(mine, type(theirs))
    for _ in range(3):
        x = 2 + 3 * torch.randn(shape)
        torch.testing.assert_close(mine(x), theirs(x))
    assert list(mine.state_dict()) == list(theirs.state_dict())
    torch.testing.assert_close(dict(mine.state_dict()), dict(theirs.state_dict()))
    mine.eval(), theirs.eval()
    x = torch.randn(shape)
    torch.testing.assert_close(mine(x), theirs(x))
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter)
    mine.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(mine(x), theirs(x))
    fresh = build(torch.nn)
    fresh.load_state_dict(mine.state_dict())
    assert type(mine).__name__ == type(theirs).__name__


@pytest.mark.parametrize(("shape", "build"), EAGER)
def test_copies(shape, build):
    module, x = build(nn), torch.randn(shape)
    module(x)
    module.eval()
    assert torch.equal(copy.deepcopy(module)(x), module(x))
    assert torch.equal(pickle.loads(pickle.dumps(module))(x), module(x))
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    buffer.seek(0)
    again = build(nn)
    again.load_state_dict(torch.load(buffer, weights_only=True))
    again.eval()
    assert torch.equal(again(x), module(x))


WITH_OFFSET = [
    (lambda **o: nn.LayerNorm(6, **o), (4, 6)),
    (lambda **o: nn.RMSNorm(6, **o), (4, 6)),
    (lambda **o: nn.GroupNorm(3, 6, **o), (4, 6, 5)),
    (lambda **o: nn.BatchNorm1d(6, **o), (4, 6, 5)),
    (lambda **o: nn.InstanceNorm1d(6, affine=True, **o), (4, 6, 5)),
    (lambda **o: nn.LazyBatchNorm1d(**o), (4, 6, 5)),
]


@pytest.mark.parametrize(("build", "shape"), WITH_OFFSET)
def test_weight_offset_starts_at_scale_one(build, shape):
    x = torch.randn(shape)
    offset, plain = build(weight_offset=1.0), build()
    torch.testing.assert_close(offset(x), plain(x))
    assert (offset.weight == 0).all()
    offset.reset_parameters()
    assert (offset.weight == 0).all()


@pytest.mark.parametrize(("build", "shape"), WITH_OFFSET)
def test_options_reach_the_function_and_show(build, shape):
    x = 1e-3 * torch.randn(shape)
    outside = build(eps_mode="outside")
    assert not torch.allclose(outside(x), build()(x))
    assert "eps_mode=outside" in repr(outside)
    assert "eps_mode" not in repr(build())
    with pytest.raises(InvalidArgumentError, match="eps_mode must be one of"):
        build(eps_mode="beside")


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda m: m.BatchNorm2d(3)(torch.randn(2, 3, 4)), ValueError, r"expected 4D input \(got 3D input\)"),
        (lambda m: m.BatchNorm1d(3)(torch.randn(2, 4, 5)), RuntimeError, "running_mean should contain 4"),
        (lambda m: m.BatchNorm1d(3)(torch.randn(1, 3)), ValueError, "Expected more than 1 value per channel"),
        (lambda m: m.InstanceNorm2d(3)(torch.randn(2, 3)), ValueError, "expected 3D or 4D input"),
        (
            lambda m: m.InstanceNorm1d(3, affine=True)(torch.randn(2, 4, 5)),
            ValueError,
            r"expected input's size at dim=1 to match num_features \(3\), but got: 4.",
        ),
        (lambda m: m.InstanceNorm1d(3)(torch.randn(2, 3, 1)), ValueError, "Expected more than 1 spatial element"),
        (lambda m: m.GroupNorm(2, 3), ValueError, "num_channels"),
        (lambda m: m.GroupNorm(3, 3)(torch.randn(3)), RuntimeError, "Expected at least 2 dimensions"),
        (lambda m: m.LayerNorm(3)(torch.randn(2, 4)), RuntimeError, r"Given normalized_shape=\[3\], expected input"),
        (lambda m: m.RMSNorm(3)(torch.randn(2, 4)), RuntimeError, r"Given normalized_shape=\[3\], expected input"),
        (lambda m: m.LayerNorm(3)(torch.ones(2, 3).long()), RuntimeError, "mixed dtype|int64"),
        (lambda m: m.functional.layer_norm(torch.ones(2, 3), 3), TypeError, "normalized_shape"),
    ],
)
def test_wrong_input_raises_what_torch_raises(call, kind, message):
    class Mine:
        functional = F

        def __getattr__(self, name):
            return getattr(nn, name)

    for modules in (torch.nn, Mine()):
        with pytest.raises(kind, match=message):
            call(modules)


def test_instance_norm_warns_where_torch_warns():
    for modules in (torch.nn, nn):
        with pytest.warns(UserWarning, match="does not match num_features|num_features is 3"):
            modules.InstanceNorm1d(3)(torch.randn(2, 4, 5))


def test_a_lazy_module_takes_a_mask_at_once():
    x, mask = torch.randn(3, 6, 5), torch.arange(5) < torch.tensor([[5], [2], [3]])
    lazy, eager = nn.LazyBatchNorm1d(), nn.BatchNorm1d(6)
    torch.testing.assert_close(lazy(x, mask), eager(x, mask))
    assert type(lazy) is nn.BatchNorm1d


def test_autocast_keeps_the_dtype_of_the_stream():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), nn.LayerNorm(8), torch.nn.Linear(8, 8), nn.RMSNorm(8))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(torch.randn(4, 8))
    assert y.dtype == torch.bfloat16
    y.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("norm", ["LayerNorm", "RMSNorm", "BatchNorm1d", "GroupNorm", "InstanceNorm1d"])
def test_activation_checkpointing_gives_the_same_bits(norm, reentrant):
    module = nn.GroupNorm(2, 16) if norm == "GroupNorm" else getattr(nn, norm)(16)
    x, cotangent = torch.randn(4, 16, 16), torch.randn(4, 16, 16)
    found = []
    for run in (module, lambda t: checkpoint(module, t, use_reentrant=reentrant)):
        leaf = x.clone().requires_grad_()
        module.zero_grad()
        run(leaf).backward(cotangent)
        found.append([leaf.grad, *(p.grad.clone() for p in module.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


class Stack(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.rms = nn.LayerNorm(8), nn.RMSNorm(8, eps=1e-6)
        self.batch, self.group, self.dyt = nn.BatchNorm1d(6), nn.GroupNorm(3, 6), nn.DyT(8)

    def forward(self, x):
        return self.dyt(self.group(self.batch(self.rms(self.layer(x)))))


def test_export():
    model, x = Stack().eval(), torch.randn(4, 6, 8)
    batch = torch.export.Dim("batch", min=2, max=64)
    exported = torch.export.export(model, (x,), dynamic_shapes=({0: batch},)).module()
    more = torch.randn(9, 6, 8)
    torch.testing.assert_close(exported(more), model(more))


class Functions(torch.nn.Module):
    def forward(self, x):
        x = F.rms_norm(F.layer_norm(x, (8,), eps_mode="outside"), (8,))
        x = F.batch_norm(x, None, None, training=True)
        return F.normalize(F.dyt(F.group_norm(F.instance_norm(x), 3), 0.5))


@pytest.mark.parametrize("training", [True, False])
def test_symbolic_trace_of_modules(training):
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.InstanceNorm2d(4), nn.GroupNorm(2, 4), nn.LayerNorm(6)
    )
    model.train(training)
    traced, x = torch.fx.symbolic_trace(copy.deepcopy(model)), torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(traced(x), model(x))
    running = dict(traced.named_buffers())
    for key, value in model.named_buffers():
        if "running" in key:
            torch.testing.assert_close(running[key], value)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_a_traced_module_keeps_its_modes_and_its_counter(training, momentum):
    def models():
        torch.manual_seed(0)
        norms = [nn.BatchNorm2d(4, momentum=momentum), nn.InstanceNorm2d(4, momentum=0.1, track_running_stats=True)]
        return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), *norms).train(training)

    model, traced = models(), torch.fx.symbolic_trace(models())
    traced.load_state_dict(model.state_dict())
    for mode in (True, False, True):
        x = torch.randn(2, 3, 8, 8)
        assert torch.equal(traced.train(mode)(x), model.train(mode)(x))
    for name, value in model.state_dict().items():
        assert torch.equal(traced.state_dict()[name], value), name


def test_a_trace_follows_a_module_where_it_would_follow_torchs():
    class Inside(torch.fx.Tracer):
        def is_leaf_module(self, m, module_qualified_name):
            return False

    model = torch.nn.Sequential(nn.BatchNorm2d(4)).eval()
    assert [node.op for node in Inside().trace(model).nodes].count("call_module") == 0
    model[0].register_forward_hook(lambda module, inputs, y: 2 * y)  # fx records it beside the module
    x = torch.randn(2, 4, 3, 3)
    assert torch.equal(torch.fx.symbolic_trace(model)(x), model(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("how", ["trace", "export"])
def test_the_running_statistics_of_a_traced_training_module_are_in_no_graph(how, backend):
    norms = [nn.BatchNorm1d(6, backend=backend), nn.InstanceNorm1d(6, track_running_stats=True, backend=backend)]
    model, x = torch.nn.Sequential(torch.nn.Conv1d(6, 6, 1), *norms), torch.randn(4, 6, 8)
    eager = copy.deepcopy(model)
    if how == "trace":
        traced = torch.jit.trace(model, x, check_trace=False)
        eager(x)  # as the tracing does
    else:
        traced = torch.export.export(model, (x,)).module()
    for _ in range(2):
        traced(x).sum().backward()
        eager(x)
    for name, value in traced.named_buffers():
        assert not value.requires_grad, name
        torch.testing.assert_close(value, dict(eager.named_buffers())[name])
    copy.deepcopy(model)


def test_symbolic_trace_records_the_functions():
    traced, x = torch.fx.symbolic_trace(Functions()), torch.randn(4, 6, 8)
    targets = {node.target for node in traced.graph.nodes if node.op == "call_function"}
    assert targets == {F.layer_norm, F.rms_norm, F.batch_norm, F.instance_norm, F.group_norm, F.dyt, F.normalize}
    torch.testing.assert_close(traced(x), Functions()(x))


def test_training_under_compile_updates_running_statistics():
    torch._dynamo.reset()
    eager, x = Stack(), torch.randn(4, 6, 8)
    compiled_model = copy.deepcopy(eager)
    compiled = torch.compile(compiled_model, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), eager(x))
    torch.testing.assert_close(compiled_model.batch.running_var, eager.batch.running_var)
    assert compiled_model.batch.num_batches_tracked == 2


def test_meta_and_fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with torch.device("meta"):
        assert Stack()(torch.randn(4, 6, 8)).device.type == "meta"
    with FakeTensorMode():
        assert Stack()(torch.randn(4, 6, 8)).shape == (4, 6, 8)
