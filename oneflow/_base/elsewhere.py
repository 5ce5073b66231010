"""Names of PyTorch, Keras, JAX, NumPy and later releases of OneFlow, with the equivalents in this library.

``public.py`` reads this table for names that a module does not have. It contains only names with other letters than
ours: ``LayerNorm`` leads to ``flow.layers.layer_norm`` without it.
"""

from __future__ import annotations

_LAZY = "here a job is described, compiled once and called"
# Names of the eager package of 0.5 and 0.6, by their paths below oneflow.compatible.single_client; "*" is for all others.
EAGER = {
    "*": f"it belongs to the eager, PyTorch-like package of 0.5 and 0.6; {_LAZY}",
    "Tensor": f"it was the eager tensor; {_LAZY}, and its values are Blobs (oneflow.Blob)",
    "tensor": f"it made an eager tensor; {_LAZY}: feed an array, or use flow.constant",
    "Parameter": f"it was an eager parameter; {_LAZY}: use flow.get_variable",
    "no_grad": 'it switched off eager gradients; here a job of type "predict" has none',
    "grad_enable": 'it switched on eager gradients; here a job of type "train" has them',
    "inference_mode": 'it was an eager mode; here a job of type "predict" has no gradients',
    "builtin_op": "it made an eager op object; use flow.user_op_builder inside a job",
    "stateful_op": "it made an eager op object; use flow.user_op_builder inside a job",
    "to_global": "it moved eager tensors; use flow.parallel_cast inside a job",
    "from_numpy": "it made an eager tensor; jobs are called with arrays",
    "Generator": "it was an eager random generator; flow.manual_seed seeds the session",
    "default_generator": "it was an eager random generator; flow.manual_seed seeds the session",
    "env.all_device_placement": "it placed eager tensors; use flow.scope.placement inside a job",
    "nn.Parameter": f"it was an eager parameter; {_LAZY}: use flow.get_variable",
    "nn.Sequential": f"it was an eager module; {_LAZY}: call the layers in turn",
    "nn.ModuleList": f"it was an eager module; {_LAZY}: use a list",
}

_BY_OURS = {
    # modules
    "flow.nn": "functional", "flow.optimizer": "optim optimizers optax lr_scheduler schedules",
    "flow.math": "numpy lax jnp", "flow.keras.activations": "activations", "flow.data": "datasets",
    "flow.distribute": "dist", "flow.config.gpu_device_num": "cuda", "flow.FunctionConfig().enable_auto_mixed_precision": "amp",
    "flow.glorot_uniform_initializer": "init",
    # jobs, values, variables
    "flow.global_function": "jit compile", "flow.sync_default_session": "synchronize block_until_ready",
    "flow.typing.Numpy.Placeholder": "placeholder Input tensor", "flow.typing.Numpy": "ndarray", "flow.constant": "array full",
    "flow.constant_like": "full_like", "flow.get_variable": "parameter variable", "flow.range": "arange",
    "flow.manual_seed": "seed set_random_seed PRNGKey",
    "flow.random.normal": "randn",
    "flow.random.uniform": "rand", "flow.random.categorical": "multinomial", "flow.watch": "debug",
    "flow.get_all_variables": "state_dict", "flow.load_variables": "load_state_dict",
    "flow.experimental.scope.config": "remat checkpointing",
    # layers
    "flow.layers.dense": "linear fully_connected", "flow.gather": "take index_select",
    "flow.layers.batch_normalization": "batch_norm batch_norm1d batch_norm2d batch_norm3d",
    "flow.layers.layer_norm": "layer_normalization", "flow.nn.GroupNorm": "group_normalization",
    "flow.nn.conv2d_transpose": "conv_transpose2d", "flow.layers.upsample_2d": "upsample interpolate",
    "flow.nn.max_pool1d": "max_pooling1d", "flow.nn.max_pool2d": "max_pooling2d", "flow.nn.max_pool3d": "max_pooling3d",
    "flow.nn.avg_pool1d": "average_pooling1d", "flow.nn.avg_pool2d": "average_pooling2d",
    "flow.nn.avg_pool3d": "average_pooling3d",
    # functions of Blobs
    "flow.nn.swish": "silu", "flow.nn.hardswish": "hard_silu", "flow.concat": "cat concatenate hstack vstack",
    "flow.expand_dims": "unsqueeze", "flow.transpose": "permute swap_axes", "flow.reshape": "view",
    "flow.broadcast_like": "broadcast_to", "flow.expand": "tile", "flow.dim_gather": "take_along_axis",
    "flow.reverse": "flip", "flow.cast": "astype to type_as",
    "flow.stop_gradient": "detach", "flow.matmul": "mm bmm dot", "flow.scatter_nd": "scatter",
    "flow.math.reduce_sum": "sum", "flow.math.reduce_mean": "mean global_average_pooling2d adaptive_avg_pool2d",
    "flow.math.reduce_max": "max amax", "flow.math.reduce_min": "min amin", "flow.math.reduce_prod": "prod",
    "flow.math.reduce_std": "std", "flow.math.reduce_variance": "var", "flow.math.reduce_any": "any",
    "flow.math.reduce_all": "all", "flow.math.reduce_euclidean_norm": "norm", "flow.math.negative": "neg",
    "flow.math.subtract": "sub", "flow.math.multiply": "mul", "flow.math.divide": "div true_divide",
    "flow.math.mod": "remainder", "flow.math.pow": "power", "flow.math.greater_equal": "ge", "flow.math.greater": "gt",
    "flow.math.less_equal": "le", "flow.math.less": "lt", "flow.math.equal": "eq", "flow.math.not_equal": "ne",
    "flow.math.lgamma": "gammaln",
    # losses
    "flow.nn.sparse_softmax_cross_entropy_with_logits":
        "cross_entropy cross_entropy_loss sparse_categorical_crossentropy softmax_cross_entropy_with_integer_labels",
    "flow.nn.softmax_cross_entropy_with_logits": "categorical_crossentropy softmax_cross_entropy",
    "flow.nn.sparse_cross_entropy": "nll_loss", "flow.nn.BCELoss": "binary_crossentropy binary_cross_entropy",
    "flow.nn.BCEWithLogitsLoss": "binary_cross_entropy_with_logits sigmoid_binary_cross_entropy",
    "flow.nn.MSELoss": "mean_squared_error", "flow.nn.L1Loss": "mean_absolute_error", "flow.smooth_l1_loss": "huber_loss",
    # training
    "flow.optimizer.PiecewiseConstantScheduler": "constant_scheduler constant_lr piecewise_constant_decay",
    "flow.optimizer.PiecewiseScalingScheduler": "step_lr multi_step_lr",
    "flow.optimizer.ExponentialScheduler": "exponential_lr exponential_decay",
    "flow.optimizer.CosineScheduler": "cosine_annealing_lr cosine_decay",
    "flow.optimizer.PolynomialScheduler": "polynomial_lr polynomial_decay", "flow.optimizer.warmup.linear": "linear_lr",
    "flow.loggers.TensorBoardLogger": "tensorboard summary_writer",
    "flow.optimizer.SGD": "momentum momentum_optimizer gradient_descent_optimizer sgd_optimizer",
    "flow.optimizer.Adam": "adam_optimizer", "flow.optimizer.RMSProp": "rms_prop_optimizer",
    "flow.optimizer.grad_clipping.by_global_norm": "clip_grad_norm clip_by_global_norm",
    "flow.optimizer.loss_scale.dynamic_loss_scale": "grad_scaler", "flow.watch_diff": "grad",
    # data
    "flow.data.ofrecord_reader": "data_loader tf_record_dataset", "flow.data.load_mnist": "mnist",
}  # fmt: skip
# by their letters alone: the spelling of ``refuse.plain_spelling``
ELSEWHERE = {theirs.replace("_", "").lower(): ours for ours, some in _BY_OURS.items() for theirs in some.split()}
_STEPS = 'a recurrent layer is a loop over steps in the job\'s body: docs/guide.md has one under "Weights of your own"'
_PREDICT = 'jobs of type "predict" have no gradients'
# Names that no single name of ours stands for, in the same spelling, with what to do instead.
WITHOUT_EQUIVALENT = {
    **dict.fromkeys(("lstm", "gru", "rnn", "lstmcell", "grucell", "simplernn"), _STEPS),
    **dict.fromkeys(("nograd", "inferencemode", "enablegrad"), _PREDICT),
    "multiheadattention": "attention is written as its products and softmax, as in examples/models/gpt.py",
}
