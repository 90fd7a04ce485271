//! Checks each source against its definition over the full history.

use super::cpu::{advance_means, worst};
use super::*;
use crate::weights::Vector;

const WIDTH: usize = 5;
const SEEN: usize = 3;
const TOKENS: usize = 60;

fn value(i: usize) -> f32 {
    ((i * 7919 + 13) % 101) as f32 / 50.0 - 1.0
}

fn values(salt: usize, n: usize) -> Vec<f32> {
    (0..n).map(|i| value(1000 * salt + i * i)).collect()
}

/// The plain definition, over the full history.
struct Plain {
    keys: Vec<Vec<f32>>,
    queries: Vec<Vec<f32>>,
}

impl Plain {
    fn new() -> Self {
        let scale = 1.0 / (WIDTH as f32).sqrt();
        let rows = |salt: usize, scale: f32| -> Vec<Vec<f32>> {
            let row = |t| values(salt + t, WIDTH).iter().map(|x| x * scale).collect();
            (0..TOKENS).map(row).collect()
        };
        Plain {
            keys: rows(7, scale),
            queries: rows(400, 1.0),
        }
    }

    fn mean(rows: &[Vec<f32>]) -> Vec<f32> {
        let sum = |n: usize| rows.iter().map(|row| f64::from(row[n])).sum::<f64>();
        (0..WIDTH)
            .map(|n| (sum(n) / rows.len() as f64) as f32)
            .collect()
    }

    fn bin(rows: &[Vec<f32>], hash: &Hash) -> usize {
        let columns = hash.weight.len() / WIDTH;
        let mean = Self::mean(rows);
        let row = rows.last().unwrap();
        let product = |r: usize| -> f32 {
            (0..WIDTH)
                .map(|n| (row[n] - mean[n]) * hash.weight[n * columns + r])
                .sum()
        };
        if hash.signs {
            (0..columns)
                .map(|r| usize::from(product(r) > 0.0) << r)
                .sum()
        } else {
            let better = |best, r| if product(r) > product(best) { r } else { best };
            (0..columns).fold(0, better)
        }
    }

    /// The tokens that query t sees of a source of [`SEEN`] tokens.
    fn seen(&self, pattern: &Pattern, layers: &[(Vector, Vector)], t: usize) -> Vec<usize> {
        let all = 0..=t;
        match pattern {
            Pattern::Window => all.rev().take(SEEN).collect(),
            Pattern::Sink => all.take(SEEN).collect(),
            Pattern::Dilated(every) => {
                let chosen = |j: &usize| j % every == every - 1;
                all.rev().filter(chosen).take(SEEN).collect()
            }
            Pattern::Bins(hash) => {
                let bin = Self::bin(&self.queries[..=t], hash);
                let same = |j: &usize| Self::bin(&self.keys[..=*j], hash) == bin;
                all.rev().filter(same).take(SEEN).collect()
            }
            Pattern::Best(_) => {
                let mut scored: Vec<(f32, usize)> =
                    all.map(|j| (self.score(layers, j), j)).collect();
                scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
                scored.into_iter().take(SEEN).map(|(_, j)| j).collect()
            }
        }
    }

    fn score(&self, layers: &[(Vector, Vector)], j: usize) -> f32 {
        let mut mean = Self::mean(&self.queries[..=j]);
        let length = mean.iter().map(|x| x * x).sum::<f32>().sqrt();
        mean.iter_mut().for_each(|x| *x /= length);
        let mut x = [self.keys[j].clone(), mean].concat();
        for (i, (weight, bias)) in layers.iter().enumerate() {
            let sum = |(row, bias): (&[f32], &f32)| -> f32 {
                row.iter().zip(&x).map(|(w, x)| w * x).sum::<f32>() + bias
            };
            let y = weight.chunks(x.len()).zip(bias.iter()).map(sum);
            x = y.map(|y| if i < 2 { y.max(0.0) } else { y }).collect();
        }
        x[0]
    }
}

/// Steps through the tokens and compares the rows that each query reads; returns the number of
/// queries that read none.
fn compare(patterns: Vec<Pattern>, layers: &[(Vector, Vector)]) -> usize {
    let plain = Plain::new();
    let expected: Vec<Vec<usize>> = (0..TOKENS)
        .map(|t| {
            let mut seen: Vec<usize> = patterns
                .iter()
                .flat_map(|pattern| plain.seen(pattern, layers, t))
                .collect();
            seen.sort();
            seen.dedup();
            seen
        })
        .collect();
    let sources = Sources::new(patterns.into_iter().map(|p| (p, SEEN)).collect(), WIDTH);
    let mut state = State {
        keys: &mut vec![0.0f32; sources.rows() * WIDTH],
        positions: &mut vec![0; sources.rows()],
        cursors: &mut vec![0; sources.bins(WIDTH)],
        scores: &mut vec![0.0; sources.scored()],
    };
    let mut means = [0.0; 2 * WIDTH];
    let mut plan = vec![0.0; sources.plan_width()];
    let mut scratch = vec![0.0; sources.scratch(WIDTH)];
    let mut empty = 0;
    for (t, expected) in expected.iter().enumerate() {
        let (k, q) = (values(7 + t, WIDTH), &plain.queries[t]);
        advance_means(&mut means, t as u64, &k, q);
        let measures = sources.measure(&means, &k, q, &mut scratch);
        sources.step(
            t as u64,
            (&k, q),
            measures,
            &mut state,
            &mut plan,
            &mut scratch,
        );
        for row in sources.written(&plan) {
            assert_eq!(state.positions[row], t as u64 + 1);
        }
        let mut seen: Vec<(usize, f32)> = sources
            .seen(&plan)
            .map(|(row, weight)| (state.positions[row] as usize - 1, weight))
            .collect();
        seen.sort_by_key(|(position, _)| *position);
        let positions: Vec<usize> = seen.iter().map(|(position, _)| *position).collect();
        assert_eq!(&positions, expected, "query {t}");
        let score = |j: usize| -> f64 {
            let products = q.iter().zip(&plain.keys[j]).map(|(q, k)| q * k);
            f64::from(products.sum::<f32>()).exp()
        };
        let sum: f64 = expected.iter().map(|&j| score(j)).sum();
        for (position, weight) in seen {
            assert!((f64::from(weight) - score(position) / sum).abs() < 1e-5);
        }
        empty += usize::from(expected.is_empty());
    }
    empty
}

fn hash(columns: usize, signs: bool) -> Pattern {
    Pattern::Bins(Hash {
        weight: values(3, WIDTH * columns).into(),
        signs,
    })
}

fn scorer() -> (Pattern, Vec<(Vector, Vector)>) {
    let n = 2 * WIDTH;
    let layer = |salt, rows: usize| -> (Vector, Vector) {
        (values(salt, rows * n).into(), values(salt + 1, rows).into())
    };
    let layers = vec![layer(20, n), layer(30, n), layer(40, 1)];
    let scorer = Scorer::new(
        [layers[0].clone(), layers[1].clone()],
        layers[2].0.clone(),
        layers[2].1[0],
    );
    (Pattern::Best(scorer), layers)
}

#[test]
fn each_source_keeps_what_its_definition_names() {
    for fixed in [Pattern::Window, Pattern::Sink] {
        assert_eq!(compare(vec![fixed], &[]), 0);
    }
    assert_eq!(compare(vec![Pattern::Dilated(7)], &[]), 6);
    assert!(compare(vec![hash(3, true)], &[]) > 0);
    assert!(compare(vec![hash(30, false)], &[]) > 0);
    let (best, layers) = scorer();
    assert_eq!(compare(vec![best], &layers), 0);
}

#[test]
fn sources_unite_without_repeating_a_token() {
    let (best, layers) = scorer();
    let all = vec![
        Pattern::Window,
        Pattern::Sink,
        Pattern::Dilated(2),
        hash(2, true),
        best,
    ];
    assert_eq!(compare(all, &layers), 0);
}

#[test]
fn of_equal_scores_the_older_stays() {
    // Rows hold the tokens 4, 1 and 2; the next one is 5.
    let positions = [5, 2, 3];
    assert_eq!(worst(&[0.5, 0.5, 0.5], &positions, 5, 0.5), None);
    assert_eq!(worst(&[0.5, 0.5, 0.5], &positions, 5, 0.6), Some(0));
    assert_eq!(worst(&[0.7, 0.5, 0.5], &positions, 5, 0.6), Some(2));
    assert_eq!(worst(&[0.7, 0.4, 0.5], &positions, 5, 0.6), Some(1));
    assert_eq!(worst(&[0.0; 3], &[0; 3], 1, -9.0), Some(1));
}
