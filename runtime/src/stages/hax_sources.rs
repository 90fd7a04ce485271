//! Which earlier tokens a query of sparse attention sees, and with which weights.

use super::softmax::Element;
use crate::cpu::simd;
use crate::program::Vector;

/// The tokens that a source keeps.
pub enum Pattern {
    /// The last ones.
    Window,
    /// The first ones of the sequence.
    Sink,
    /// Every n-th one.
    Dilated(usize),
    /// The last ones in the bin of the query.
    Bins(Hash),
    /// Those with the highest scores; of equal ones the older.
    Best(Scorer),
}

/// A source and its place in the table.
pub(super) struct Source {
    pub pattern: Pattern,
    /// Its first row.
    pub first: usize,
    /// Rows that a query sees. Bins have as many each.
    pub rows: usize,
}

/// Locality-sensitive hashing of keys and queries, each less the mean of those before it and itself.
pub struct Hash {
    /// `[width, columns]`.
    pub weight: Vector,
    /// Whether the signs of the products make the bin's number, a bit each; else the largest product's column is it.
    pub signs: bool,
}

/// Scores a key from itself and the direction of the mean query so far: two layers with relu, then a sum.
pub struct Scorer {
    /// Of each layer, transposed `[2 width, 2 width]`.
    pub(super) weights: [Vector; 2],
    pub(super) biases: [Vector; 2],
    pub(super) last: Vector,
    pub(super) last_bias: f32,
}

/// Sources that share a table.
pub struct Sources {
    list: Vec<Source>,
    rows: usize,
}

/// What the sources remember.
pub(super) struct State<'a, E> {
    pub keys: &'a mut [E],
    pub positions: &'a mut [u64],
    pub means: &'a mut [f32],
    pub cursors: &'a mut [u32],
    pub scores: &'a mut [f32],
}

/// In a plan: no row.
const NONE: u32 = u32::MAX;

impl Hash {
    fn bins(&self, width: usize) -> usize {
        let columns = self.weight.len() / width;
        if self.signs { 1 << columns } else { columns }
    }

    /// The bin of a centred key or query.
    #[inline(always)]
    fn bin(&self, x: &[f32], products: &mut [f32]) -> usize {
        let columns = self.weight.len() / x.len();
        let products = &mut products[..columns];
        products.fill(0.0);
        for (&x, weights) in x.iter().zip(self.weight.chunks_exact(columns)) {
            simd::axpy(x, weights, products);
        }
        if self.signs {
            let bit = |(r, &product): (usize, &f32)| usize::from(product > 0.0) << r;
            return products.iter().enumerate().map(bit).sum();
        }
        let mut largest = 0;
        for (r, &product) in products.iter().enumerate() {
            if product > products[largest] {
                largest = r;
            }
        }
        largest
    }
}

impl Scorer {
    /// From a checkpoint's matrices `[out, in]` and biases.
    pub fn new(layers: [(Vector, Vector); 2], last: Vector, last_bias: f32) -> Self {
        let transpose = |weight: &Vector, n: usize| -> Vector {
            (0..n * n).map(|i| weight[i % n * n + i / n]).collect()
        };
        let [(first, first_bias), (second, second_bias)] = layers;
        let n = last.len();
        Scorer {
            weights: [transpose(&first, n), transpose(&second, n)],
            biases: [first_bias, second_bias],
            last,
            last_bias,
        }
    }

    /// The score of `key`, given the mean query.
    #[inline(always)]
    fn score(&self, key: &[f32], mean_query: &[f32], scratch: &mut [f32]) -> f32 {
        let n = self.last.len();
        let (x, rest) = scratch.split_at_mut(n);
        let y = &mut rest[..n];
        let (copy, direction) = x.split_at_mut(key.len());
        copy.copy_from_slice(key);
        direction.copy_from_slice(mean_query);
        // The mean points where the sum does.
        let length = simd::dot(mean_query, mean_query).sqrt();
        simd::scale(1.0 / length.max(1e-12), direction);
        for (weight, bias) in self.weights.iter().zip(&self.biases) {
            y.copy_from_slice(bias);
            simd::gemm([1, n, n], x, [n, 1], weight, n, y, n);
            for (x, y) in x.iter_mut().zip(y.iter()) {
                *x = y.max(0.0);
            }
        }
        simd::dot(x, &self.last) + self.last_bias
    }
}

impl Sources {
    /// Sources with the number of tokens that a query sees of each.
    pub fn new(patterns: Vec<(Pattern, usize)>, width: usize) -> Self {
        let mut rows = 0;
        let mut list = Vec::new();
        for (pattern, seen) in patterns {
            let bins = match &pattern {
                Pattern::Bins(hash) => hash.bins(width),
                _ => 1,
            };
            let source = Source {
                pattern,
                first: rows,
                rows: seen,
            };
            list.push(source);
            rows += bins * seen;
        }
        Sources { list, rows }
    }

    /// Rows of the table.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Bins, if there are any.
    pub(super) fn bins(&self, width: usize) -> usize {
        let bins = |source: &Source| match &source.pattern {
            Pattern::Bins(hash) => hash.bins(width),
            _ => 0,
        };
        self.list.iter().map(bins).sum()
    }

    /// Keys with scores.
    pub(super) fn scored(&self) -> usize {
        let scored = |source: &Source| match &source.pattern {
            Pattern::Best(_) => source.rows,
            _ => 0,
        };
        self.list.iter().map(scored).sum()
    }

    /// Bytes of weights that one token touches.
    pub fn weight_bytes(&self) -> usize {
        let floats = |source: &Source| match &source.pattern {
            Pattern::Bins(hash) => hash.weight.len(),
            Pattern::Best(scorer) => scorer.weights.iter().map(|w| w.len()).sum(),
            Pattern::Window | Pattern::Sink | Pattern::Dilated(_) => 0,
        };
        self.list.iter().map(floats).sum::<usize>() * size_of::<f32>()
    }

    /// The sources, in the order of their rows.
    pub(super) fn list(&self) -> &[Source] {
        &self.list
    }

    /// Rows of earlier tokens that the query at `position` sees at most, and rows that its token takes.
    pub(super) fn touched(&self, position: u64) -> (usize, usize) {
        let (mut seen, mut taken) = (0, 0);
        for source in &self.list {
            let rows = source.rows as u64;
            let (sees, takes) = match &source.pattern {
                Pattern::Window => (position.min(rows - 1), true),
                Pattern::Sink => (position.min(rows), position < rows),
                Pattern::Dilated(every) => {
                    let every = *every as u64;
                    let takes = position % every == every - 1;
                    let rows = rows - u64::from(takes);
                    ((position / every).min(rows), takes)
                }
                Pattern::Bins(_) | Pattern::Best(_) => (position.min(rows), true),
            };
            seen += sees as usize;
            taken += usize::from(takes);
        }
        (seen, taken)
    }

    /// Most rows that a query sees.
    pub(super) fn most(&self) -> usize {
        self.list.iter().map(|source| source.rows).sum()
    }

    /// Floats of one token's plan: for each source the row that the token takes; the number of rows that its query
    /// sees; these rows; their weights. Numbers of rows are stored as bits.
    pub fn plan_width(&self) -> usize {
        self.list.len() + 1 + 2 * self.most()
    }

    /// Floats of scratch for keys of this width.
    pub(super) fn scratch(&self, width: usize) -> usize {
        let columns = |source: &Source| match &source.pattern {
            Pattern::Bins(hash) => hash.weight.len() / width,
            _ => 0,
        };
        let columns: usize = self.list.iter().map(columns).sum();
        3 * width + columns.max(4 * width)
    }

    /// Rows that a token takes by its plan.
    #[inline(always)]
    pub(super) fn written(&self, plan: &[f32]) -> impl Iterator<Item = usize> {
        let rows = plan[..self.list.len()].iter().map(|row| row.to_bits());
        rows.filter(|&row| row != NONE).map(|row| row as usize)
    }

    /// Rows that a query sees by its plan, with their weights.
    #[inline(always)]
    pub(super) fn seen(&self, plan: &[f32]) -> impl Iterator<Item = (usize, f32)> {
        let (count, entries) = plan[self.list.len()..].split_first().expect("a plan");
        let (rows, weights) = entries.split_at(self.most());
        let rows = rows.iter().map(|row| row.to_bits() as usize);
        rows.zip(weights.iter().copied())
            .take(count.to_bits() as usize)
    }

    /// One token: takes its key in, then plans what it writes and what its query sees.
    #[inline(always)]
    pub(super) fn step<E: Element>(
        &self,
        position: u64,
        k: &[f32],
        q: &[f32],
        state: &mut State<E>,
        plan: &mut [f32],
        scratch: &mut [f32],
    ) {
        let width = k.len();
        let (key, rest) = scratch.split_at_mut(width);
        let (centred, rest) = rest.split_at_mut(width);
        let (wide, products) = rest.split_at_mut(width);
        let scale = 1.0 / (width as f32).sqrt();
        for (key, k) in key.iter_mut().zip(k) {
            *key = scale * k;
        }
        let (mean_key, mean_query) = state.means.split_at_mut(width);
        let count = (position + 1) as f32;
        for (mean, x) in [(&mut *mean_key, &*key), (&mut *mean_query, q)] {
            for (mean, x) in mean.iter_mut().zip(x) {
                *mean += (x - *mean) / count;
            }
        }

        let (taken, rest) = plan.split_at_mut(self.list.len());
        for (source, taken) in self.list.iter().zip(taken) {
            let positions = &state.positions[source.first..];
            let rows = source.rows as u64;
            let row = match &source.pattern {
                Pattern::Window => Some((position % rows) as usize),
                Pattern::Sink => (position < rows).then_some(position as usize),
                Pattern::Dilated(every) => {
                    let every = *every as u64;
                    (position % every == every - 1).then_some((position / every % rows) as usize)
                }
                Pattern::Bins(hash) => {
                    subtract(key, mean_key, centred);
                    let bin = hash.bin(centred, products);
                    let cursor = &mut state.cursors[bin];
                    let row = bin * source.rows + *cursor as usize;
                    *cursor = (*cursor + 1) % source.rows as u32;
                    Some(row)
                }
                Pattern::Best(scorer) => {
                    let score = scorer.score(key, mean_query, products);
                    let scores = &mut state.scores[..source.rows];
                    let row = worst(scores, positions, position, score);
                    if let Some(row) = row {
                        scores[row] = score;
                    }
                    row
                }
            };
            *taken = f32::from_bits(row.map_or(NONE, |row| (source.first + row) as u32));
            if let Some(row) = row {
                let row = source.first + row;
                state.positions[row] = position + 1;
                E::narrow(key, &mut state.keys[row * width..][..width]);
            }
        }

        let (count, entries) = rest.split_first_mut().expect("a plan");
        let (rows, weights) = entries.split_at_mut(self.most());
        let mut seen = 0;
        for source in &self.list {
            let first = match &source.pattern {
                Pattern::Bins(hash) => {
                    subtract(q, mean_query, centred);
                    source.first + hash.bin(centred, products) * source.rows
                }
                _ => source.first,
            };
            let others = seen;
            for row in first..first + source.rows {
                let position = state.positions[row];
                let again = |other: &f32| state.positions[other.to_bits() as usize] == position;
                if position == 0 || rows[..others].iter().any(again) {
                    continue;
                }
                E::widen(&state.keys[row * width..][..width], wide);
                rows[seen] = f32::from_bits(row as u32);
                weights[seen] = simd::dot(q, wide);
                seen += 1;
            }
        }
        *count = f32::from_bits(seen as u32);
        softmax(&mut weights[..seen]);
    }
}

/// The row that a token with `score` takes in a set with one row for each score: the next while there is room, then
/// that of the lowest score, of equal ones the newest, if it is lower.
#[inline(always)]
fn worst(scores: &[f32], positions: &[u64], position: u64, score: f32) -> Option<usize> {
    if position < scores.len() as u64 {
        return Some(position as usize);
    }
    let mut lowest = 0;
    for row in 1..scores.len() {
        let newer = positions[row] > positions[lowest];
        if scores[row] < scores[lowest] || (scores[row] == scores[lowest] && newer) {
            lowest = row;
        }
    }
    (scores[lowest] < score).then_some(lowest)
}

#[inline(always)]
fn subtract(x: &[f32], mean: &[f32], out: &mut [f32]) {
    for ((out, x), mean) in out.iter_mut().zip(x).zip(mean) {
        *out = x - mean;
    }
}

#[inline(always)]
fn softmax(x: &mut [f32]) {
    let largest = simd::max(x);
    let mut sum = 0.0;
    for x in x.iter_mut() {
        *x = simd::exp(*x - largest);
        sum += *x;
    }
    simd::scale(1.0 / sum, x);
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDTH: usize = 5;
    const SEEN: usize = 3;
    const TOKENS: usize = 60;

    fn value(i: usize) -> f32 {
        ((i * 7919 + 13) % 101) as f32 / 50.0 - 1.0
    }

    fn values(salt: usize, n: usize) -> Vec<f32> {
        (0..n).map(|i| value(1000 * salt + i * i)).collect()
    }

    /// The plain definition, over the whole history.
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

    /// Steps through the tokens and compares what each query sees; returns how many saw nothing.
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
            means: &mut [0.0; 2 * WIDTH],
            cursors: &mut vec![0; sources.bins(WIDTH)],
            scores: &mut vec![0.0; sources.scored()],
        };
        let mut plan = vec![0.0; sources.plan_width()];
        let mut scratch = vec![0.0; sources.scratch(WIDTH)];
        let mut empty = 0;
        for (t, expected) in expected.iter().enumerate() {
            let (k, q) = (values(7 + t, WIDTH), &plain.queries[t]);
            sources.step(t as u64, &k, q, &mut state, &mut plan, &mut scratch);
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
}
