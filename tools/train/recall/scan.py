"""Linear recurrences over complete rows: matrix products within a chunk, step by step from chunk to chunk."""

import torch
import torch.nn.functional as F

CHUNK = 16  # e^(CHUNK * LEAST) is still an f32
SCALAR_CHUNK = 32  # of `scalar_scan`
LEAST = -5.0  # smallest log decay of a step; the gates here reach it at logits below -40


def linear_scan(q, k, v, gk=None, gv=None):
    """`S_t = diag(e^gk) S_{t-1} diag(e^gv) + k_t^T v_t; o_t = q_t S_t`, from S = 0.

    q, k, gk [B, H, T, dk], v, gv [B, H, T, dv]; a missing decay is 1. Returns o [B, H, T, dv].
    """
    T = q.shape[2]
    pad = -T % CHUNK

    def chunks(x):
        return F.pad(x, (0, 0, 0, pad)).unflatten(2, (-1, CHUNK))

    q, k, v = chunks(q), chunks(k), chunks(v)
    end_k = end_v = None
    if gk is not None:
        G = chunks(gk.clamp(min=LEAST)).cumsum(3)
        q, k, end_k = q * G.exp(), k * (-G).exp(), G[..., -1, :]
    if gv is not None:
        G = chunks(gv.clamp(min=LEAST)).cumsum(3)
        v, into_v, end_v = v * (-G).exp(), G.exp(), G[..., -1, :]
    written = k.transpose(-1, -2) @ v
    if end_k is not None:
        before = passed_on(written, end_k)
    elif end_v is not None:
        before = passed_on(written.transpose(-1, -2), end_v).transpose(-1, -2)
    else:
        before = F.pad(written[:, :, :-1].cumsum(2), (0, 0, 0, 0, 1, 0))
    o = (q @ k.transpose(-1, -2)).tril() @ v + q @ before
    if gv is not None:
        o = o * into_v
    return o.flatten(2, 3)[:, :, :T]


def grouped_scan(q, k, v, gk, group):
    """Like `linear_scan`, with a state for each group: a token of `group` [B, T] decays, writes and reads only the state of its group.

    Tokens are sorted by group, so that the cost does not depend on the number of groups. A chunk then passes on the state of its last
    token's group, which only tokens of that group in later chunks read.
    """
    B, H, T, _ = q.shape
    order = group.sort(dim=-1, stable=True).indices  # [B, T]
    back = order.argsort(-1)

    def chosen(x, order):
        return x.gather(2, order[:, None, :, None].expand(-1, H, -1, x.shape[-1]))

    def chunks(x):
        return F.pad(x, (0, 0, 0, -T % CHUNK)).unflatten(2, (-1, CHUNK))

    q, k, v, g = (chunks(chosen(x, order)) for x in (q, k, v, gk.clamp(min=LEAST)))
    n = F.pad(group.gather(1, order), (0, -T % CHUNK), value=-1).unflatten(1, (-1, CHUNK))  # [B, N, CHUNK]; padding is no group
    G = g.cumsum(3)
    q, k, end = q * G.exp(), k * (-G).exp(), G[..., -1, :]
    last = n[..., -1]  # [B, N]
    writes, reads = n == last[..., None], n == F.pad(last[:, :-1], (1, 0), value=-2)[..., None]
    written = (k * writes[:, None, ..., None]).transpose(-1, -2) @ v
    passed = F.pad(last[:, :-1], (1, 0), value=-2)[:, :, None] == last[:, None]  # chunk n begins in the group in which chunk m ends
    before = passed_on(written, end, passed)
    within = (q @ k.transpose(-1, -2)).tril() * (n[..., :, None] == n[..., None, :])[:, None]
    o = within @ v + (q * reads[:, None, ..., None]) @ before
    return chosen(o.flatten(2, 3)[:, :, :T], back)


def passed_on(written, end, passed=None):
    """Returns the state before each chunk: written [B, H, N, d, e] (as if before the chunk's first decay), end [B, H, N, d] the chunk's log
    decay.

    If `passed` [B, N, N] is given, the writes of chunk m reach chunk n only where it is true.
    """
    total = end.cumsum(2).transpose(2, 3)  # [B, H, d, N]
    before = total - end.transpose(2, 3)
    N = end.shape[2]
    earlier = torch.ones(N, N, dtype=torch.bool, device=end.device).tril(-1)
    if passed is not None:
        earlier = (earlier & passed)[:, None, None]
    # The writes of chunk m decay until the end of chunk n - 1.
    share = (before[..., :, None] - before[..., None, :]).masked_fill(~earlier, -torch.inf).exp()
    return (share @ written.transpose(2, 3)).transpose(2, 3)


def scalar_scan(q, k, v, g):
    """`S_t = e^(g_t) S_{t-1} + k_t^T v_t; o_t = q_t S_t` with one decay per head: g [B, H, T]; q and k may have one head for all.

    A step may forget everything: every exponential is of a decay, never of its inverse.
    """
    T = g.shape[-1]
    q, k, v = (F.pad(x, (0, 0, 0, -T % SCALAR_CHUNK)).unflatten(2, (-1, SCALAR_CHUNK)) for x in (q, k, v))
    G = F.pad(g, (0, -T % SCALAR_CHUNK)).unflatten(2, (-1, SCALAR_CHUNK)).cumsum(-1)
    lower = torch.ones(SCALAR_CHUNK, SCALAR_CHUNK, dtype=torch.bool, device=g.device).tril()
    decay = (G[..., :, None] - G[..., None, :]).masked_fill(~lower, -torch.inf).exp()
    end = G[..., -1]
    written = k.transpose(-1, -2) @ (v * (end[..., None] - G).exp()[..., None])
    total, N = end.cumsum(-1), end.shape[-1]
    earlier = torch.ones(N, N, dtype=torch.bool, device=g.device).tril(-1)
    # The writes of chunk m decay from its end until the end of chunk n - 1.
    share = ((total - end)[..., :, None] - total[..., None, :]).masked_fill(~earlier, -torch.inf).exp()
    before = (share @ written.flatten(3)).unflatten(3, written.shape[3:])
    o = (q @ k.transpose(-1, -2) * decay) @ v + q @ before * G.exp()[..., None]
    return o.flatten(2, 3)[:, :, :T]


@torch.no_grad()
def running_best(score, n):
    """Returns which tokens are among the n best so far: [..., t, j] is true if fewer than n of the tokens 0..t beat token j.

    score [..., T]; of equal scores the older one wins; minus infinity never counts. Entries with j > t are meaningless.
    """
    T = score.shape[-1]
    older = torch.ones(T, T, dtype=torch.bool, device=score.device).triu(1)  # [i, j]: i < j
    i, j = score[..., :, None], score[..., None, :]
    beaten = ((i > j) | ((i == j) & older)).cumsum(-2, dtype=torch.int32)
    return (beaten < n) & (j > -torch.inf)
