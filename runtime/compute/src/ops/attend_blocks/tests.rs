use super::*;
use crate::ops::rig::{Rig, noise};
use crate::state::StateDtype;

/// Softmax attention of `query` over tokens, in f64; zero over none.
fn softmax(
    query: &[f64],
    keys: &[Vec<f64>],
    values: &[Vec<f64>],
    scale: f64,
) -> (Vec<f64>, Vec<f64>) {
    let dot = |k: &Vec<f64>| query.iter().zip(k).map(|(a, b)| a * b).sum::<f64>();
    let weights: Vec<f64> = keys.iter().map(|k| (scale * dot(k)).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let shares: Vec<f64> = weights.iter().map(|w| w / sum).collect();
    let mut out = vec![0.0; query.len()];
    for (share, value) in shares.iter().zip(values) {
        for (out, v) in out.iter_mut().zip(value) {
            *out += share * v;
        }
    }
    (out, shares)
}

fn mean(rows: &[Vec<f64>]) -> Vec<f64> {
    let sum = |i| rows.iter().map(|row| row[i]).sum::<f64>();
    (0..rows[0].len())
        .map(|i| sum(i) / rows.len() as f64)
        .collect()
}

#[test]
fn follows_the_definition_and_any_split_gives_the_same_bits() {
    // Heads, key and value heads, width, block, chosen, window, context, tokens.
    for [heads, kv_heads, dim, block, chosen, window, context, tokens] in [
        [6, 2, 5, 4, 4, 7, 90, 90],
        [3, 1, 17, 3, 5, 0, 70, 70],
        [2, 2, 40, 7, 4, 70, 100, 61],
        [4, 2, 9, 1, 3, 2, 50, 50],
    ] {
        let (width, stride) = (heads * dim, (heads + 2 * kv_heads) * dim + 3 * heads);
        let columns = |start, width| View {
            buffer: 0,
            start,
            width,
            stride,
        };
        let [q, k, v, gates] = [
            columns(0, width),
            columns(width, kv_heads * dim),
            columns(width + kv_heads * dim, kv_heads * dim),
            columns(width + 2 * kv_heads * dim, 3 * heads),
        ];
        let op = AttendBlocks {
            heads,
            kv_heads,
            q,
            k,
            v,
            gates,
            scale: 0.9,
            block,
            chosen,
            window,
            keys: 0,
            values: 1,
            mean_keys: 2,
            mean_values: 3,
            out: View::whole(1, width),
        };
        let cached: &[usize] = &[kv_heads, context, dim];
        let means: &[usize] = &[kv_heads, context.div_ceil(block), dim];
        let f32 = StateDtype::F32;
        let slots = [(f32, cached), (f32, cached), (f32, means), (f32, means)];
        let fill = |buffer: usize, t: usize, row: &mut [f32]| {
            for (i, x) in row.iter_mut().enumerate() {
                *x = noise(buffer * 7 + t * stride + i);
            }
        };
        let widths = [stride, width];
        let mut rig = Rig::new(&op, &widths, &slots);
        let out = View::whole(1, width);
        let (whole, state) = rig.read(&[tokens], fill, out);
        assert!((whole.clone(), state.clone()) == rig.read(&vec![1; tokens], fill, out));
        let ragged = [1, tokens / 3, 2, tokens - tokens / 3 - 3];
        assert!((whole.clone(), state.clone()) == rig.read(&ragged, fill, out));
        // Steps with this many threads split the heads and the blocks.
        for threads in [1, 3, 8] {
            let mut rig = Rig::new(&op, &widths, &slots).threads(threads);
            assert!((whole.clone(), state.clone()) == rig.read(&vec![1; tokens], fill, out));
        }

        let value = |t: usize, column: usize| f64::from(noise(t * stride + column));
        let rows = |view: &View, head: usize, t: usize| -> Vec<f64> {
            (0..dim)
                .map(|i| value(t, view.start + head * dim + i))
                .collect()
        };
        for t in 0..tokens {
            for kv_head in 0..kv_heads {
                let keys: Vec<_> = (0..=t).map(|t| rows(&k, kv_head, t)).collect();
                let values: Vec<_> = (0..=t).map(|t| rows(&v, kv_head, t)).collect();
                let mean_keys: Vec<_> = keys.chunks_exact(block).map(mean).collect();
                let mean_values: Vec<_> = values.chunks_exact(block).map(mean).collect();
                let group = heads / kv_heads;
                let queries = (0..group).map(|g| rows(&q, kv_head * group + g, t));
                let by_means: Vec<_> = queries
                    .clone()
                    .map(|q| softmax(&q, &mean_keys, &mean_values, 0.9))
                    .collect();
                let current = t / block;
                let mut order: Vec<(f64, usize)> = (0..=current)
                    .map(|c| {
                        if c == 0 || c + 1 >= current {
                            (-(group as f64), c)
                        } else {
                            (-by_means.iter().map(|(_, s)| s[c]).sum::<f64>(), c)
                        }
                    })
                    .collect();
                order.sort_by(|a, b| a.partial_cmp(b).expect("numbers"));
                order.truncate(chosen);
                let in_chosen = |t: &usize| order.iter().any(|(_, c)| *c == t / block);
                let pick = |rows: &[Vec<f64>], seen: &dyn Fn(&usize) -> bool| -> Vec<_> {
                    (0..=t).filter(seen).map(|t| rows[t].clone()).collect()
                };
                let near = |j: &usize| j + window > t;
                for (g, query) in queries.enumerate() {
                    let head = kv_head * group + g;
                    let branches = [
                        by_means[g].0.clone(),
                        softmax(
                            &query,
                            &pick(&keys, &in_chosen),
                            &pick(&values, &in_chosen),
                            0.9,
                        )
                        .0,
                        softmax(&query, &pick(&keys, &near), &pick(&values, &near), 0.9).0,
                    ];
                    for i in 0..dim {
                        let gate = |b: usize| value(t, gates.start + head * 3 + b);
                        let expected: f64 = (0..3).map(|b| gate(b) * branches[b][i]).sum();
                        let found = f64::from(whole[t * width + head * dim + i]);
                        assert!(
                            (found - expected).abs() < 1e-5,
                            "{heads} {dim} {block}: token {t} head {head}: {found} {expected}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_wrapped_context_reads_the_same_in_any_split() {
    for [rows, block] in [[20, 4], [19, 5], [7, 3], [4, 6]] {
        let op = AttendBlocks {
            heads: 2,
            kv_heads: 1,
            q: View {
                buffer: 0,
                start: 0,
                width: 10,
                stride: 26,
            },
            k: View {
                buffer: 0,
                start: 10,
                width: 5,
                stride: 26,
            },
            v: View {
                buffer: 0,
                start: 15,
                width: 5,
                stride: 26,
            },
            gates: View {
                buffer: 0,
                start: 20,
                width: 6,
                stride: 26,
            },
            scale: 0.5,
            block,
            chosen: 4,
            window: 9,
            keys: 0,
            values: 1,
            mean_keys: 2,
            mean_values: 3,
            out: View::whole(1, 10),
        };
        let cached: &[usize] = &[1, rows, 5];
        let means: &[usize] = &[1, rows.div_ceil(block), 5];
        let f16 = StateDtype::F16;
        let slots = [(f16, cached), (f16, cached), (f16, means), (f16, means)];
        let fill = |_: usize, t: usize, row: &mut [f32]| {
            for (i, x) in row.iter_mut().enumerate() {
                *x = noise(t * 26 + i);
            }
        };
        let mut rig = Rig::new(&op, &[26, 10], &slots);
        let out = View::whole(1, 10);
        let whole = rig.read(&[70], fill, out);
        assert!(whole.0.iter().all(|x| x.is_finite()));
        assert!(whole == rig.read(&[1; 70], fill, out), "{rows} {block}");
        assert!(
            whole == rig.read(&[3, rows, 1, 66 - rows], fill, out),
            "{rows} {block}"
        );
        let mut alone = Rig::new(&op, &[26, 10], &slots).threads(1);
        assert!(whole == alone.read(&[70], fill, out), "{rows} {block}");
    }
}
