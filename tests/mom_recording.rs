//! What the recorded case `mom_k2` holds, and why no decoder can give it.
//!
//! The reference brings the tokens of each memory together by sorting (token, memory) pairs by memory, with a sort that is
//! not stable (flash-linear-attention `layers/mom.py`, `transform`: `combined.argsort()`). From 17 pairs on the C++
//! library's sort mixes the tokens of a memory, and the convolutions and the recurrence run over them in that order: the
//! first token's output depends on the last one. Here the model is written out in f64 with the order as a parameter. In
//! that sort's order it gives the recorded logits; in the order of the text it gives waterline's.

use std::collections::HashMap;
use std::path::PathBuf;

use waterline::{Model, Session, SessionOptions};
use waterline_quant::safetensors;

const HEADS: usize = 2;
/// Of a head, of its keys and of its values.
const WIDTH: usize = 32;
const MEMORIES: usize = 4;
const CHOSEN: usize = 2;
const BLOCKS: usize = 2;
const EPS: f64 = 1e-6;
/// The case's own.
const TOLERANCE: f64 = 1e-3;

type Vector = Vec<f64>;
/// From the memory of each pair to the pairs as they are read, memory by memory.
type Order = fn(&[usize]) -> Vec<usize>;

/// In the order of the text.
fn stable(memories: &[usize]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..memories.len()).collect();
    order.sort_by_key(|&pair| memories[pair]);
    order
}

/// As libstdc++'s `std::sort` leaves them: quicksort about a median of three down to 16 elements, then insertion sort.
fn unstable(memories: &[usize]) -> Vec<usize> {
    let less = |a: usize, b: usize| memories[a] < memories[b];
    let mut order: Vec<usize> = (0..memories.len()).collect();
    let mut ranges = vec![(0, order.len())];
    while let Some((first, last)) = ranges.pop() {
        if last - first <= 16 {
            continue;
        }
        let (a, b, c) = (first + 1, first + (last - first) / 2, last - 1);
        let [x, y, z] = [a, b, c].map(|at| order[at]);
        let median = match (less(x, y), less(y, z), less(x, z)) {
            (true, true, _) | (false, false, false) => b,
            (true, false, true) | (false, true, false) => c,
            _ => a,
        };
        order.swap(first, median);
        let pivot = order[first];
        let (mut low, mut high) = (first + 1, last);
        let cut = loop {
            while less(order[low], pivot) {
                low += 1;
            }
            high -= 1;
            while less(pivot, order[high]) {
                high -= 1;
            }
            if low >= high {
                break low;
            }
            order.swap(low, high);
            low += 1;
        };
        ranges.extend([(first, cut), (cut, last)]);
    }
    order.sort_by_key(|&pair| memories[pair]); // what is left is a stable insertion sort
    order
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(to: &mut [f64], share: f64, x: &[f64]) {
    for (to, x) in to.iter_mut().zip(x) {
        *to += share * x;
    }
}

/// The checkpoint's tensors by their names.
struct Weights(HashMap<String, Vector>);

impl Weights {
    fn open(folder: &PathBuf) -> Self {
        let file = safetensors::Checkpoint::open(folder).expect("a checkpoint");
        let tensor = |name: &str| {
            let values = file.tensor(name).expect("a tensor").to_f32();
            (
                name.to_string(),
                values.into_iter().map(f64::from).collect(),
            )
        };
        Weights(file.names().map(tensor).collect())
    }

    fn values(&self, name: &str) -> &[f64] {
        self.0.get(name).unwrap_or_else(|| panic!("no {name}"))
    }

    fn apply(&self, name: &str, x: &[f64]) -> Vector {
        let rows = self.values(&format!("{name}.weight"));
        rows.chunks_exact(x.len()).map(|row| dot(row, x)).collect()
    }

    fn rms(&self, name: &str, x: &[f64]) -> Vector {
        let scale = 1.0 / (dot(x, x) / x.len() as f64 + EPS).sqrt();
        let gains = self.values(&format!("{name}.weight"));
        gains
            .iter()
            .zip(x)
            .map(|(gain, x)| gain * scale * x)
            .collect()
    }

    /// Gated DeltaNet over these inputs in their order: what each reads, `[HEADS * WIDTH]`. `names`: key, value, write
    /// strength, decay.
    fn memory(&self, mixer: &str, names: [String; 4], inputs: &[&Vector]) -> Vec<Vector> {
        let convolved = |name: &str, matrix: &str| -> Vec<Vector> {
            let raw: Vec<Vector> = inputs.iter().map(|x| self.apply(matrix, x)).collect();
            let weight = self.values(&format!("{mixer}.{name}_conv1d.weight"));
            let taps = weight.len() / (HEADS * WIDTH);
            let value = |t: usize, c: usize| {
                let past =
                    (0..taps.min(t + 1)).map(|j| weight[(c + 1) * taps - 1 - j] * raw[t - j][c]);
                silu(past.sum())
            };
            (0..raw.len())
                .map(|t| (0..HEADS * WIDTH).map(|c| value(t, c)).collect())
                .collect()
        };
        let [key, value, strength, decay] = names.map(|name| format!("{mixer}.{name}"));
        let q = convolved("q", &format!("{mixer}.q_proj"));
        let (k, v) = (convolved("k", &key), convolved("v", &value));
        let rates = self.values(&format!("{mixer}.A_log"));
        let biases = self.values(&format!("{mixer}.dt_bias"));
        let mut states = vec![vec![vec![0.0; WIDTH]; WIDTH]; HEADS];
        let mut outputs = Vec::new();
        for (t, x) in inputs.iter().enumerate() {
            let (beta, step) = (self.apply(&strength, x), self.apply(&decay, x));
            let mut output = Vector::new();
            for (h, state) in states.iter_mut().enumerate() {
                let head = |y: &[Vector]| y[t][h * WIDTH..][..WIDTH].to_vec();
                let unit = |y: Vector| -> Vector {
                    let length = (dot(&y, &y) + 1e-6).sqrt();
                    y.iter().map(|y| y / length).collect()
                };
                let (q, k, v) = (unit(head(&q)), unit(head(&k)), head(&v));
                let fade = (-rates[h].exp() * (step[h] + biases[h]).exp().ln_1p()).exp();
                state.iter_mut().flatten().for_each(|s| *s *= fade);
                let read = |state: &[Vector], by: &[f64], d: usize| -> f64 {
                    state.iter().zip(by).map(|(row, y)| row[d] * y).sum()
                };
                let new: Vector = (0..WIDTH)
                    .map(|d| sigmoid(beta[h]) * (v[d] - read(state, &k, d)))
                    .collect();
                for (row, &k) in state.iter_mut().zip(&k) {
                    add(row, k, &new);
                }
                output.extend((0..WIDTH).map(|d| read(state, &q, d) / (WIDTH as f64).sqrt()));
            }
            outputs.push(output);
        }
        outputs
    }

    fn mixer(&self, name: &str, inputs: &[Vector], order: Order) -> Vec<Vector> {
        let all: Vec<&Vector> = inputs.iter().collect();
        let names = |part: fn(char) -> String| ['k', 'v', 'b', 'a'].map(part);
        let mut outputs = self.memory(name, names(|c| format!("shared_{c}")), &all);
        let (mut memories, mut shares) = (Vec::new(), Vec::new());
        for x in inputs {
            let scores: Vector = self.apply(&format!("{name}.gate"), x);
            let mut best: Vec<usize> = (0..MEMORIES).collect();
            best.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
            let sum: f64 = best[..CHOSEN].iter().map(|&m| scores[m].exp()).sum();
            memories.extend(&best[..CHOSEN]);
            shares.extend(best[..CHOSEN].iter().map(|&m| scores[m].exp() / sum));
        }
        let order = order(&memories);
        for m in 0..MEMORIES {
            let pairs: Vec<usize> = order
                .iter()
                .copied()
                .filter(|&p| memories[p] == m)
                .collect();
            let read: Vec<&Vector> = pairs.iter().map(|&pair| &inputs[pair / CHOSEN]).collect();
            let names = ['k', 'v', 'b', 'a'].map(|c| format!("{c}_proj.{m}"));
            for (pair, output) in pairs.iter().zip(self.memory(name, names, &read)) {
                add(&mut outputs[pair / CHOSEN], shares[*pair], &output);
            }
        }
        let finish = |(x, o): (&Vector, &Vector)| {
            let gate = self.apply(&format!("{name}.g_proj"), x);
            let norm = format!("{name}.o_norm");
            let heads = o.chunks_exact(WIDTH).flat_map(|head| self.rms(&norm, head));
            let gated: Vector = heads.zip(gate).map(|(o, g)| o * silu(g)).collect();
            self.apply(&format!("{name}.o_proj"), &gated)
        };
        inputs.iter().zip(&outputs).map(finish).collect()
    }

    /// Logits of every token.
    fn logits(&self, tokens: &[u32], order: Order) -> Vec<Vector> {
        let embedding = self.values("model.embeddings.weight");
        let width = HEADS * WIDTH;
        let mut x: Vec<Vector> = tokens
            .iter()
            .map(|&token| embedding[token as usize * width..][..width].to_vec())
            .collect();
        for i in 0..BLOCKS {
            let name = |part: &str| format!("model.layers.{i}.{part}");
            let inputs: Vec<Vector> = x.iter().map(|x| self.rms(&name("attn_norm"), x)).collect();
            let mixed = self.mixer(&name("attn"), &inputs, order);
            for (x, mixed) in x.iter_mut().zip(&mixed) {
                add(x, 1.0, mixed);
                let h = self.rms(&name("mlp_norm"), x);
                let (gate, up) = (
                    self.apply(&name("mlp.gate_proj"), &h),
                    self.apply(&name("mlp.up_proj"), &h),
                );
                let inner: Vector = gate.iter().zip(&up).map(|(g, u)| silu(*g) * u).collect();
                add(x, 1.0, &self.apply(&name("mlp.down_proj"), &inner));
            }
        }
        let head = |x: &Vector| self.apply("lm_head", &self.rms("model.norm", x));
        x.iter().map(head).collect()
    }
}

/// The largest difference of the first logits.
fn difference(a: &[Vector], b: &[Vector]) -> f64 {
    let both = a.iter().flatten().zip(b.iter().flatten());
    both.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

#[test]
fn the_recording_is_not_causal_and_waterline_is() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/mom_k2");
    let case = safetensors::Checkpoint::open_file(folder.join("case.safetensors")).expect("a case");
    let (_, ids) = case.read_i64("input_ids").expect("tokens");
    let tokens: Vec<u32> = ids.iter().map(|&id| id as u32).collect();
    let weights = Weights::open(&folder);
    let recorded = case.tensor("logits").expect("logits");
    let vocab = recorded.len() / tokens.len();
    let rows = |values: Vec<f32>| -> Vec<Vector> {
        let row = |row: &[f32]| row.iter().map(|&x| f64::from(x)).collect();
        values.chunks_exact(vocab).map(row).collect()
    };
    let recorded = rows(recorded.to_f32());

    let as_recorded = weights.logits(&tokens, unstable);
    assert!(difference(&as_recorded, &recorded) < TOLERANCE);
    // Without the last token the first one's logits would have been others.
    let shorter = weights.logits(&tokens[..tokens.len() - 1], unstable);
    assert!(difference(&shorter[..1], &recorded[..1]) > 0.1);

    let model = Model::open(&folder).expect("a model");
    let mut session = Session::new(model, SessionOptions::default()).expect("a session");
    let mut ours = Vec::new();
    session
        .feed_each(&tokens, |_, logits| ours.extend_from_slice(logits))
        .expect("logits");
    let in_order = weights.logits(&tokens, stable);
    assert!(difference(&in_order, &rows(ours)) < TOLERANCE);
    let shorter = weights.logits(&tokens[..tokens.len() - 1], stable);
    assert!(difference(&shorter, &in_order) < 1e-12);
}
