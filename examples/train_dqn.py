"""Reinforcement learning: deep Q-learning balances a pole on a cart.

python examples/train_dqn.py [--episodes N] [--steps N]

The cart is that of A. Barto, R. Sutton and C. Anderson, "Neuronlike adaptive elements that can solve difficult
learning control problems" (1983); learning is double Q-learning with a replay buffer and a target network (H. van
Hasselt et al., 2016). An episode ends when the pole falls, or well after 200 steps.
"""

import argparse

import numpy as np

import oneflow as flow
import oneflow.typing as tp

BATCH, HIDDEN, DISCOUNT, LONGEST = 64, 64, 0.98, 200


def values(state, name, trainable=True):
    """The expected return (N, 2) of pushing the cart to the left or to the right."""
    arguments = {"kernel_initializer": flow.xavier_uniform_initializer(), "trainable": trainable}
    x = flow.layers.dense(state, HIDDEN, activation=flow.nn.relu, name=f"{name}_1", **arguments)
    x = flow.layers.dense(x, HIDDEN, activation=flow.nn.relu, name=f"{name}_2", **arguments)
    return flow.layers.dense(x, 2, name=f"{name}_3", **arguments)


States = tp.Numpy.Placeholder((BATCH, 4))
Numbers = tp.Numpy.Placeholder((BATCH,))


@flow.global_function("train")
def learn(
    state: States, action: tp.Numpy.Placeholder((BATCH, 1), dtype=flow.int32), reward: Numbers, after: States, goes_on: Numbers
) -> tp.Numpy:
    online = values(flow.concat([state, after], axis=0), "online")
    best = flow.expand_dims(flow.math.argmax(online[BATCH:]), 1)
    later = flow.squeeze(flow.gather(values(after, "target", trainable=False), best, axis=1, batch_dims=1), [1])
    target = flow.stop_gradient(reward + DISCOUNT * goes_on * later)
    found = flow.squeeze(flow.gather(online[:BATCH], action, axis=1, batch_dims=1), [1])
    loss = flow.math.reduce_mean(flow.math.squared_difference(found, target))
    flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [1e-3])).minimize(loss)
    return loss


@flow.global_function("predict")
def act(state: tp.Numpy.Placeholder((1, 4))) -> tp.Numpy:
    return values(state, "online")


def copy_to_target():
    variables = flow.get_all_variables()
    flow.load_variables({name: variables[name.replace("target", "online")].numpy() for name in variables if "target" in name})


def push(state, action):
    """The state 0.02 s later, and whether the pole still stands."""
    x, speed, angle, turn = state
    force, length, pole, total = (10.0 if action else -10.0), 0.5, 0.1, 1.1
    sine, cosine = np.sin(angle), np.cos(angle)
    pull = (force + pole * length * turn**2 * sine) / total
    spin = (9.8 * sine - cosine * pull) / (length * (4 / 3 - pole * cosine**2 / total))
    push = pull - pole * length * spin * cosine / total
    after = np.array([x + 0.02 * speed, speed + 0.02 * push, angle + 0.02 * turn, turn + 0.02 * spin], np.float32)
    return after, abs(after[0]) < 2.4 and abs(after[2]) < np.pi / 15


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--steps", type=int, default=30_000, help="stop after so many steps of the cart")
    options = parser.parse_args()

    flow.manual_seed(0)
    rng = np.random.default_rng(0)
    memory, steps, lengths = [], 0, []
    for episode in range(options.episodes):
        state, length, stands = rng.uniform(-0.05, 0.05, 4).astype(np.float32), 0, True
        while stands and length < LONGEST and steps < options.steps:
            explores = rng.random() < max(0.02, 0.5 * (1 - steps / 4000))
            action = int(rng.integers(2)) if explores else int(act(state[None]).argmax())
            after, stands = push(state, action)
            memory.append((state, [action], 1.0, after, float(stands)))
            state, length, steps = after, length + 1, steps + 1
            if len(memory) >= 500:
                batch = [memory[i] for i in rng.integers(max(0, len(memory) - 20_000), len(memory), BATCH)]
                state_, action_, reward, after_, goes_on = (np.array(column) for column in zip(*batch, strict=True))
                learn(state_, action_.astype(np.int32), reward.astype(np.float32), after_, goes_on.astype(np.float32))
                if steps % 200 == 0:
                    copy_to_target()
        lengths.append(length)
        is_over = steps >= options.steps or np.mean(lengths[-10:]) == LONGEST
        if episode % 10 == 9 or is_over:
            print(f"episode {episode + 1:3d}  the pole stood for {np.mean(lengths[-10:]):.0f} steps of {LONGEST}", flush=True)
        if is_over:
            break


if __name__ == "__main__":
    main()
