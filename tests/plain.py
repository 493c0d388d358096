"""The five decoding loops, each written out the way its paper does it, counting tokens instead of holding them.

Nothing here is shared with pearl_sim: the tests compare the two. A loop yields, for every round,
(verified before, pending before, tokens drafted, positions scored, drafts accepted, nanoseconds); where one model
waits for the other, each one's turn is a round of its own.  `slower` is what percentage longer a model takes while
the other one runs on the same device.
runs[i] is the number of drafts in a row that the target accepts when drafting starts after i verified tokens.
"""


def together(one, other, slower):
    """Return how long two parts that start together take, if each slows the other down."""
    shorter, longer = sorted((one, other))
    return shorter + shorter * slower // 100 + (longer - shorter)


def autoregressive(runs, limit, gamma, t_draft, t_target, sync, slower=0):
    for length in range(1, limit):
        yield length, 0, 0, 1, 0, t_target


def vanilla(runs, limit, gamma, t_draft, t_target, sync, slower=0):
    length = 1
    while length < limit:
        right = 0
        while right < gamma and right < runs[length]:
            right += 1
        yield length, 0, gamma, 0, 0, gamma * t_draft
        yield length, gamma, 0, gamma + 1, right, t_target + sync
        length += right + 1  # the correction, or the bonus token


def pearl(runs, limit, gamma, t_draft, t_target, sync, slower=0):
    length, start, mode = 1, 1, "pre-verify"
    lasts = together(gamma * t_draft, t_target, slower) + sync
    while length < limit:
        if mode == "pre-verify":
            start = length
            if runs[start] == 0:  # the first draft is wrong: all gamma are dropped
                yield length, 0, gamma, 1, 0, lasts
                length += 1
            else:
                yield length, 0, gamma, 1, 1, lasts
                length += 1
                if gamma > 1:
                    mode = "post-verify"
        else:
            left = runs[start] - (length - start)
            if left < gamma:
                yield length, gamma - 1, gamma, gamma, left, lasts
                length += left + 1
                mode = "pre-verify"
            else:
                yield length, gamma - 1, gamma, gamma, gamma, lasts
                length += gamma


def pearl_without_pre_verify(runs, limit, gamma, t_draft, t_target, sync, slower=0):
    length = 1
    while length < limit:
        start = length
        yield length, 0, gamma, 0, 0, gamma * t_draft  # the target has nothing to look at yet
        while length < limit:
            left = runs[start] - (length - start)
            right = gamma if left >= gamma else left
            yield length, gamma, gamma, gamma, right, together(gamma * t_draft, t_target, slower) + sync
            if right < gamma:
                length += right + 1
                break
            length += gamma


def pearl_without_post_verify(runs, limit, gamma, t_draft, t_target, sync, slower=0):
    length = 1
    while length < limit:
        start = length
        first_is_right = runs[start] > 0
        yield length, 0, gamma, 1, int(first_is_right), together(gamma * t_draft, t_target, slower) + sync
        length += 1
        if first_is_right and gamma > 1 and length < limit:  # the draft waits for the other gamma - 1
            right = 0
            while right < gamma - 1 and 1 + right < runs[start]:
                right += 1
            yield length, gamma - 1, 0, gamma, right, t_target + sync
            length += right + 1


LOOPS = {
    "autoregressive": autoregressive,
    "vanilla": vanilla,
    "pearl": pearl,
    "without_pre_verify": pearl_without_pre_verify,
    "without_post_verify": pearl_without_post_verify,
}
