"""Trains a GPT on data x tensor x pipeline devices, as a program of 2021 for `oneflow.compatible.single_client` does.

The tokens are a file's bytes, written as an indexed data set of Megatron's:

python examples/models/megatron_gpt.py --text docs/guide.md --steps 200
python examples/models/megatron_gpt.py --data 2 --tensor 2 --stages 2 --num-accumulation-steps 2 --steps 20
"""

import math
import os
import struct
from functools import partial

import command_line
import numpy as np

import oneflow.compatible.single_client as flow


def parser():
    names = command_line.MEGATRON
    p = command_line.make_parser(__doc__, batch=8, steps=20, learning_rate=3e-3, warmup=5, aliases=names)
    p.set_defaults(save="model_save")  # snapshots, and the data set that is made of --text
    command_line.add_gpt(p, layers=2, hidden=64, heads=4, length=64, vocabulary=256, aliases=names)
    command_line.add_devices(p, aliases=names).add_argument("--device", default="cpu", choices=("cpu", "gpu"))
    model = p.add_argument_group("parts of the model")
    model.add_argument("--dropout", type=float, default=0.0)
    model.add_argument("--init-method-std", type=float, default=0.02)
    model.add_argument("--apply-query-key-layer-scaling", action="store_true")
    model.add_argument("--multihead-attention-fusion", action="store_true", help="one op for q, k and v; sequence first")
    model.add_argument("--no-scale-tril-softmax-dropout-fusion", action="store_true")
    model.add_argument("--no-bias-gelu-fusion", action="store_true")
    model.add_argument("--no-bias-dropout-fusion", action="store_true")
    model.add_argument("--checkpoint-activations", action="store_true", help="compute layers again in the backward pass")
    data = p.add_argument_group("data")
    data.add_argument("--text", default=__file__, help="what to learn, where --dataset is not given (default: this program)")
    data.add_argument("--dataset", help="prefix of an indexed data set: <prefix>.idx and <prefix>.bin")
    data.add_argument("--split", type=lambda text: tuple(map(int, text.split(","))), default=(1,))
    data.add_argument("--seed", type=int, default=1234)
    steps = p.add_argument_group("steps")
    steps.add_argument("--num-accumulation-steps", type=int, default=1)
    steps.add_argument("--iteration", type=int, default=0, help="iterations of the snapshot to start from")
    steps.add_argument("--weight-decay", type=float, default=0.01)
    steps.add_argument("--clip-grad", type=float, default=1.0)
    steps.add_argument("--loss-scale", type=float, help="of half precision; dynamic where it is not given")
    steps.add_argument("--metric-print-interval", type=int, default=1)
    steps.add_argument("--save-interval", type=int, default=0, help="steps between snapshots; 0: none")
    return p


class Devices:
    """Which devices a layer has, and the layouts of its tensors on them: entries for [data axis, model axis]."""

    def __init__(self, args):
        self.args = args
        self.per_stage = args.data * args.tensor
        self.hierarchy = [args.data, args.tensor] if args.data > 1 and args.tensor > 1 else None

    def stage(self, layer):
        return (layer % self.args.layers) // (self.args.layers // self.args.stages)

    def ids(self, layer):
        first = self.stage(layer) * self.per_stage
        return [f"0:{i}" for i in range(first, first + self.per_stage)]

    def scope(self, layer, device=None):
        return StageScope(
            flow.scope.placement(device or self.args.device, self.ids(layer), self.hierarchy),
            flow.experimental.scope.config(pipeline_stage_id_hint=self.stage(layer)),
        )

    def layout(self, data, model):
        if self.args.data > 1 and self.args.tensor > 1:
            return [data, model]
        return [data] if self.args.data > 1 else [model] if self.args.tensor > 1 else []

    def forward_p2b(self, x):
        """After a product whose partial sums are spread over the model axis."""
        if self.args.tensor == 1:
            return x
        sbp = self.layout("S(0)", "B")
        return flow.hierarchical_parallel_cast(x, nd_sbp=sbp, grad_mode="manual", grad_nd_sbp=sbp)

    backward_p2b = forward_p2b  # before a matrix in columns: the gradient's partial sums

    def on_last_stage(self, x):
        if self.args.data * self.args.tensor * self.args.stages == 1:
            return x
        with flow.scope.placement(self.args.device, self.ids(-1)):
            return flow.hierarchical_parallel_cast(x, nd_sbp=["B"])


class StageScope:
    def __init__(self, *scopes):
        self.scopes = scopes

    def __enter__(self):
        for scope in self.scopes:
            scope.__enter__()

    def __exit__(self, *error):
        for scope in reversed(self.scopes):
            scope.__exit__(*error)


class GPT:
    def __init__(self, args):
        self.args = args
        self.devices = Devices(args)
        self.batch_size = args.batch // args.num_accumulation_steps
        self.head_size = args.hidden // args.heads
        # the model's smallest standard deviations are those of what is added to the residual path
        self.normal = flow.random_normal_initializer(stddev=args.init_method_std)
        self.scaled = flow.random_normal_initializer(stddev=args.init_method_std / math.sqrt(2.0 * args.layers))

    def variable(self, name, shape, initializer, data, model):
        return flow.get_variable(
            name, shape=shape, dtype=flow.float32, initializer=initializer, nd_sbp=self.devices.layout(data, model)
        )

    def layernorm(self, name, x):
        with flow.scope.namespace(name):
            gamma = self.variable("gamma", (x.shape[-1],), flow.constant_initializer(1.0), "B", "B")
            beta = self.variable("beta", (x.shape[-1],), flow.constant_initializer(0.0), "B", "B")
            axis = len(x.shape) - 1
            return flow.nn.layer_norm(x, gamma=gamma, beta=beta, begin_norm_axis=axis, begin_params_axis=axis, epsilon=1e-5)

    def column_linear(self, name, x, units):
        """The product with a matrix in columns, and its bias."""
        with flow.scope.namespace(name):
            w = self.variable("weight", (x.shape[-1], units), self.normal, "B", "S(1)")
            b = self.variable("bias", (units,), flow.constant_initializer(0.0), "B", "S(0)")
            return flow.matmul(self.devices.backward_p2b(x), w), b

    def row_linear(self, name, x, units):
        with flow.scope.namespace(name):
            w = self.variable("weight", (x.shape[-1], units), self.scaled, "B", "S(0)")
            b = self.variable("bias", (units,), flow.constant_initializer(0.0), "B", "B")
            return self.devices.forward_p2b(flow.matmul(x, w)), b

    def bias_dropout(self, x, b):
        if self.args.no_bias_dropout_fusion:
            return flow.nn.dropout(flow.nn.bias_add(x, b, data_format="NHC"), rate=self.args.dropout)
        return flow.nn.fused_bias_add_dropout(x, b, data_format="NHC", rate=self.args.dropout)

    def attention(self, h, number):
        """h is (batch, sequence, hidden), or (sequence, batch, hidden) for the fused op; heads have q, k and v side by side."""
        args, size = self.args, self.head_size
        coefficient = float(number) if args.apply_query_key_layer_scaling else 1.0
        norm = math.sqrt(size) * coefficient
        h, b = self.column_linear("c_attn", h, 3 * args.hidden)
        h = flow.nn.bias_add(h, b, data_format="NHC")
        if args.multihead_attention_fusion:
            scores, v = flow.nn.fused_self_attention_query_mul_key_and_value(h, head_size=size, alpha=1.0 / norm)
        else:
            h = flow.reshape(h, (h.shape[0], h.shape[1], -1, 3 * size))
            q, k, v = (flow.slice(h, begin=[None, None, None, size * i], size=[None, None, None, size]) for i in range(3))
            q, k, v = (flow.transpose(x, perm=[0, 2, 1, 3]) for x in (q, k, v))
            scores = flow.matmul(q, k, transpose_b=True, alpha=1.0 / norm)
        if args.no_scale_tril_softmax_dropout_fusion:
            weights = flow.math.fused_scale_tril(scores, fill_value=float("-inf"), scale=coefficient)
            weights = flow.nn.dropout(flow.nn.softmax(weights), rate=args.dropout)
        else:
            weights = flow.nn.fused_scale_tril_softmax_dropout(
                scores, diagonal=0, scale=coefficient, fill_value=float("-inf"), rate=args.dropout
            )
        h = flow.matmul(weights, v)
        h = flow.transpose(h, perm=[2, 0, 1, 3] if args.multihead_attention_fusion else [0, 2, 1, 3])
        h = flow.reshape(h, (h.shape[0], h.shape[1], -1))
        return self.bias_dropout(*self.row_linear("c_proj", h, args.hidden))

    def mlp(self, h):
        h, b = self.column_linear("c_fc", h, 4 * self.args.hidden)
        if self.args.no_bias_gelu_fusion:
            h = flow.math.gelu(flow.nn.bias_add(h, b, data_format="NHC"))
        else:
            h = flow.nn.fused_bias_add_gelu(h, b, data_format="NHC")
        return self.bias_dropout(*self.row_linear("c_proj", h, self.args.hidden))

    def layer(self, h, i):
        with self.devices.scope(i), flow.scope.namespace(f"h{i}"):
            with flow.experimental.scope.config(checkpointing=self.args.checkpoint_activations):
                x = self.layernorm("layernorm_1", h)
                with flow.scope.namespace("attn"):
                    h = h + self.attention(x, i + 1)
                x = self.layernorm("layernorm_2", h)
                with flow.scope.namespace("mlp"):
                    return h + self.mlp(x)

    def logits(self, tokens):
        args = self.args
        with flow.scope.namespace("model"):
            with self.devices.scope(0):
                wpe = self.variable("wpe", (args.length, args.hidden), self.normal, "B", "B")
                wte = self.variable("wte", (args.vocabulary, args.hidden), self.normal, "B", "S(0)")
                h = self.devices.forward_p2b(flow.gather(wte, tokens)) + wpe
                h = flow.nn.dropout(h, rate=args.dropout)
                if args.multihead_attention_fusion:
                    h = flow.transpose(h, perm=[1, 0, 2])
            for i in range(args.layers):
                h = self.layer(h, i)
            with self.devices.scope(-1):
                h = self.layernorm("layernorm_f", h)
                if args.multihead_attention_fusion:
                    h = flow.transpose(h, perm=[1, 0, 2])
                return flow.matmul(self.devices.backward_p2b(h), wte, transpose_b=True)

    def loss(self, tokens, labels):
        logits = self.logits(tokens)
        with self.devices.scope(-1):
            if self.args.tensor > 1:
                loss = flow.nn.distributed_sparse_softmax_cross_entropy_with_logits(labels, logits)
            else:
                loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
                loss = flow.amp_white_identity(loss)
            return flow.math.reduce_mean(loss)


def batches(args, devices):
    """tokens and labels, (micro-batch, sequence) each, from the indexed data set."""
    with devices.scope(0, "cpu"):
        x = flow.data.megatron_gpt_mmap_data_loader(
            data_file_prefix=args.dataset,
            seq_length=args.length,
            num_samples=args.steps * args.batch,
            batch_size=args.batch // args.num_accumulation_steps,
            dtype=flow.int64,
            shuffle=True,
            random_seed=args.seed,
            split_sizes=args.split,
            split_index=0,
            nd_sbp=devices.layout("S(0)", "B"),
            start_from_saved_progress=True,
            name="gpt_data_loader",
        )
    with devices.scope(0):
        x = flow.hierarchical_parallel_cast(x, nd_sbp=devices.layout("S(0)", "B"))
        tokens = flow.slice(x, begin=[None, 0], size=[None, args.length])
    with devices.scope(-1):
        x = flow.hierarchical_parallel_cast(x, nd_sbp=devices.layout("S(0)", "B"))
        return tokens, flow.slice(x, begin=[None, 1], size=[None, args.length])


def make_optimizer(args):
    warmup = flow.optimizer.warmup.linear(args.warmup, 0) if args.warmup else None
    loss_scale = None
    if args.amp:
        kinds = flow.optimizer.loss_scale
        loss_scale = kinds.static_loss_scale(args.loss_scale) if args.loss_scale else kinds.dynamic_loss_scale()
    return flow.optimizer.AdamW(
        flow.optimizer.CosineScheduler(base_lr=args.learning_rate, steps=args.steps, alpha=0.1, warmup=warmup),
        do_bias_correction=True,
        loss_scale_policy=loss_scale,
        weight_decay=args.weight_decay,
        weight_decay_excludes=["bias", "LayerNorm", "layernorm"],
        grad_clipping=flow.optimizer.grad_clipping.by_global_norm(args.clip_grad) if args.clip_grad else None,
    )


def make_train_job(args):
    config = flow.function_config()
    config.prune_parallel_cast_ops(True)
    config.enable_fuse_add_to_output(True)
    config.enable_fuse_model_update_ops(True)
    config.enable_fuse_cast_scale(True)
    config.enable_non_distributed_optimizer(False)
    if args.amp:
        config.enable_auto_mixed_precision(True)
    if args.num_accumulation_steps > 1:
        config.train.num_gradient_accumulation_steps(args.num_accumulation_steps)

    @flow.global_function("train", config)
    def train():
        model = GPT(args)
        tokens, labels = batches(args, model.devices)
        loss = model.loss(tokens, labels)
        make_optimizer(args).minimize(loss)
        return {"loss": model.devices.on_last_stage(loss)}

    return train


class Snapshot:
    """Snapshots <save>/iter<N>_snapshot, by the interface of 2020."""

    def __init__(self, args):
        self.args = args
        self.check_point = flow.train.CheckPoint()
        if args.load:
            self.check_point.load(args.load)
        else:
            self.check_point.init()

    def save(self, iteration):
        path = os.path.join(self.args.save, f"iter{iteration}_snapshot")
        os.makedirs(path)
        self.check_point.save(path)


def configure(args):
    if args.device == "gpu":
        flow.config.gpu_device_num(args.data * args.tensor * args.stages)
    else:
        flow.config.cpu_device_num(args.data * args.tensor * args.stages)
    if hasattr(flow.config, "nccl_use_compute_stream"):
        flow.config.nccl_use_compute_stream(True)
    flow.config.enable_legacy_model_io()
    flow.config.enable_model_io_v2(True)


def write_dataset(prefix, documents):
    """An indexed data set of documents, bytes each; a token is a byte."""
    lengths = [len(d) for d in documents]
    ends = np.cumsum(lengths)
    with open(f"{prefix}.bin", "wb") as file:
        file.write(b"".join(documents))
    with open(f"{prefix}.idx", "wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 1, len(documents), len(documents) + 1))
        file.write(np.array(lengths, "<i4").tobytes())
        file.write(np.array([0, *ends[:-1]], "<i8").tobytes())
        file.write(np.arange(len(documents) + 1, dtype="<i8").tobytes())


def train(args, report):
    """Trains, and hands (iteration, loss) to ``report``; the loss is the mean over the accumulated micro-batches."""
    configure(args)
    if args.dataset is None:
        os.makedirs(args.save, exist_ok=True)
        args.dataset = os.path.join(args.save, "text")
        with open(args.text, "rb") as file:
            write_dataset(args.dataset, [line for line in file if line.strip()])
    flow.manual_seed(args.seed)
    job = make_train_job(args)
    snapshot = Snapshot(args)  # variables are initialized, or loaded, before the first step

    def show(iteration, result):
        losses = result["loss"].numpy()
        report(iteration, losses.sum() / len(losses))

    for iteration in range(args.iteration + 1, args.steps + 1):
        job().async_get(partial(show, iteration))
        if args.save_interval and iteration % args.save_interval == 0:
            snapshot.save(iteration)
    flow.sync_default_session()


def main():
    args = parser().parse_args()

    def report(iteration, loss):
        if iteration % args.metric_print_interval == 0:
            print(f"step {iteration:4d}  loss {loss:.4f}", flush=True)

    train(args, report)


if __name__ == "__main__":
    main()
