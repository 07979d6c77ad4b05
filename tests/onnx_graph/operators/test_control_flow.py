import numpy as np
import pytest

from fewtune.errors import InputError
from tests.expanded_models import assert_same, expanded
from tests.made.onnx_text import model_of

# A state that is doubled, plus the step; all states are stacked in an output.
COUNTING = """[loop] out, all = Loop (TRIPS, true, x) <body = body
    (int64 step, bool going, float[] state) => (bool still, float[] next, float[] shown)
    <float two = {2.0}> {
        number = Cast <to = 1> (step)
        doubled = Mul (state, two)
        sum = Add (doubled, number)
        next = Add (sum, x)
        shown = Tanh (next)
        still = Less (step, limit)
    }>"""


def counting(before="", count="trips", inputs="float[2,3] x", **constants):
    nodes = before + COUNTING.replace("TRIPS", count)
    return model_of(f"({inputs}) => (float[] out, float[] all) {{{nodes}}}", true=True, **constants)


def feeds(shape=(2, 3)):
    return {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}


@pytest.mark.parametrize(("trips", "limit"), [(5, 99), (40, 3), (3, 1)])
def test_loop_ends_by_its_count_or_its_condition(trips, limit):
    assert_same(counting(trips=np.int64(trips), limit=np.int64(limit)), feeds())


def test_trip_count_of_a_shape_is_a_constant():
    before = "shape = Shape (x) trips = Gather <axis = 0> (shape, one) "
    assert_same(counting(before, one=np.int64(1), limit=np.int64(9)), feeds())


def test_nested_loops_and_branches():
    model = model_of(
        """(float[2,3] x) => (float[] out) {
            out = Loop (trips, true, x) <body = body
                (int64 step, bool going, float[] state) => (bool still, float[] next) {
                    scaled = Loop (inner_trips, , state) <body = inner
                        (int64 inner_step, bool inner_going, float[] inner_state)
                        => (bool inner_still, float[] inner_next) {
                            inner_next = Mul (inner_state, factor)
                            inner_still = Identity (inner_going)
                        }>
                    is_first = Equal (step, first)
                    next = If (is_first) <
                        then_branch = then () => (float[] then) { then = Tanh (scaled) },
                        else_branch = other () => (float[] other) { other = Neg (scaled) }>
                    still = Identity (going)
                }>
        }""",
        trips=np.int64(3),
        inner_trips=np.int64(2),
        true=True,
        first=np.int64(0),
        factor=np.float32(1.5),
    )
    assert_same(model, feeds())


def branches(inputs="float[2,3] x", second="Neg", **constants):
    nodes = f"""[branch] out = If (condition) <
        then_branch = then () => (float[] then) {{ then = Tanh (x) }},
        else_branch = other () => (float[] other) {{ other = {second} (x) }}>"""
    return model_of(f"({inputs}) => (float[] out) {{{nodes}}}", **constants)


@pytest.mark.parametrize("condition", [True, False])
def test_constant_condition(condition):
    result = assert_same(branches(condition=condition), feeds())
    assert ("Tanh" in {node.op_type for node in result.graph.node}) == condition


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            branches("float[2,3] x, bool condition"),
            "If node 'branch' has a condition that depends",
        ),
        (
            counting(inputs="float[2,3] x, int64 trips", limit=np.int64(9)),
            "Loop node 'loop' has a trip count that depends",
        ),
        (counting(count="", limit=np.int64(10**9)), "runs for more than"),
    ],
    ids=["condition", "trip count", "endless"],
)
def test_what_is_known_while_running_only_is_refused(model, said):
    with pytest.raises(InputError, match=said):
        expanded(model)
