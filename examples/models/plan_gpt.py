"""The cost of a GPT on many devices, before any is rented: compiles a step for virtual ones and prints its plan.

python examples/models/plan_gpt.py --layers 20 --hidden 2048 --data 4 --tensor 4 --stages 4
"""

import math
import time

import command_line
import gpt

import oneflow as flow
import oneflow.typing as tp


def make_job(options):
    """A train job; nothing of it is run."""
    flow.config.cpu_device_num(options.data * options.tensor * options.stages)
    sizes = gpt.GPTConfig(
        vocab_size=options.vocabulary, hidden_size=options.hidden, layers=options.layers, heads=options.heads,
        seq_length=options.length,
    )  # fmt: skip
    layout = gpt.Devices(options.layers, options.stages, options.data, options.tensor)
    config = flow.function_config()
    if options.micro_batches > 1:
        config.train.num_gradient_accumulation_steps(options.micro_batches)

    @flow.global_function(type="train", function_config=config)
    def train_job(tokens: tp.Numpy.Placeholder((options.batch, options.length + 1), dtype=flow.int32)) -> tp.Numpy:
        loss = gpt.GPT(sizes, layout).loss(tokens)
        flow.optimizer.AdamW(flow.optimizer.PiecewiseConstantScheduler([], [1e-4])).minimize(loss)
        return loss

    return train_job


def main():
    parser = command_line.plain_parser(__doc__)
    command_line.add_gpt(parser, layers=20, hidden=2048, heads=16, length=1024, vocabulary=50304)
    command_line.add_devices(parser, data=4, tensor=4, stages=4)
    parser.add_argument("--batch", type=int, default=32, help="samples per step (default: %(default)s)")
    parser.add_argument("--micro-batches", type=int, default=1, help="parts of a batch, with one update for all")
    parser.add_argument("--whole", action="store_true", help="print every op and variable")
    options = parser.parse_args()
    job = make_job(options)
    start = time.perf_counter()
    plan = job.plan()
    seconds = time.perf_counter() - start
    if options.whole:
        print(plan)
    gib = 1 << 30
    parameters = sum(math.prod(v.shape) for v in job.graph.variables.values() if v.role == "parameter")
    print(f"{parameters / 1e9:.2f} billion parameters on {len(plan.state_bytes)} devices, planned in {seconds:.0f} s")
    first = options.data * options.tensor
    print("stage  state per device  sent by collectives per device  collectives")
    for stage in range(options.stages):
        last = (stage + 1) * first - 1
        where = next(r.placement for r in plan.ops if r.placement.startswith(f"cpu 0:{stage * first}-{last}"))
        rows = [r for r in plan.collectives if any(o.stage == r.stage and o.placement == where for o in plan.ops)]
        sent = sum(r.bytes * r.count for r in rows)
        state = plan.state_bytes[f"0:{stage * first}"]
        print(f"{stage:5}  {state / gib:10.2f} GiB  {sent / gib:24.2f} GiB  {sum(r.count for r in rows):11}")
    moved = sum(r.bytes for r in plan.transfers)
    print(f"between stages: {moved / gib:.2f} GiB per call")
    print(f"working memory of the largest function: {plan.working_bytes / gib:.2f} GiB per device")


if __name__ == "__main__":
    main()
