//! Arithmetic in f64 for tests that compare models with their equations.

#![allow(dead_code)] // each test binary uses a part

use std::collections::HashMap;

/// The epsilon of the norms.
pub const EPS: f64 = 1e-5;

pub type Vector = Vec<f64>;

pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

pub fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

pub fn softplus(x: f64) -> f64 {
    x.exp().ln_1p()
}

pub fn map(x: &[f64], f: impl Fn(f64) -> f64) -> Vector {
    x.iter().map(|&x| f(x)).collect()
}

pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

pub fn softmax(x: &[f64]) -> Vector {
    let shares = map(x, f64::exp);
    let sum: f64 = shares.iter().sum();
    map(&shares, |x| x / sum)
}

pub fn unit(x: &[f64]) -> Vector {
    let length = (dot(x, x) + 1e-6).sqrt();
    map(x, |x| x / length)
}

/// Returns the indices of the `count` largest values, the largest first.
pub fn largest(x: &[f64], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..x.len()).collect();
    order.sort_by(|&a, &b| x[b].total_cmp(&x[a]));
    order.truncate(count);
    order
}

/// Rotates a head by its position, pairing element i of its halves.
pub fn rotate(head: &[f64], position: usize, theta: f64) -> Vector {
    let half = head.len() / 2;
    let mut out = head.to_vec();
    for i in 0..half {
        let angle = position as f64 * theta.powf(-2.0 * i as f64 / head.len() as f64);
        let (sin, cos) = angle.sin_cos();
        out[i] = head[i] * cos - head[half + i] * sin;
        out[half + i] = head[half + i] * cos + head[i] * sin;
    }
    out
}

/// The weights of a one-layer model, by their names inside the mixer.
pub struct Plain(pub HashMap<String, Vec<f32>>);

impl Plain {
    pub fn values(&self, name: &str) -> Vector {
        let values = self
            .0
            .get(name)
            .or_else(|| self.0.get(&format!("blk.0.mixer.{name}")));
        let values = values.unwrap_or_else(|| panic!("no {name}"));
        values.iter().map(|&x| f64::from(x)).collect()
    }

    /// Whether the mixer has a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(&format!("blk.0.mixer.{name}"))
    }

    /// Returns the name of the mixer's output matrix.
    pub fn output_matrix(&self) -> &'static str {
        let names = ["o_proj", "out_proj"];
        let is_there = |name: &&str| self.0.contains_key(&format!("blk.0.mixer.{name}.weight"));
        names.into_iter().find(is_there).expect("an output matrix")
    }

    pub fn apply(&self, name: &str, x: &[f64]) -> Vector {
        let weight = self.values(&format!("{name}.weight"));
        weight
            .chunks_exact(x.len())
            .map(|row| dot(row, x))
            .collect()
    }

    pub fn rms(&self, name: &str, x: &[f64]) -> Vector {
        let scale = 1.0 / (dot(x, x) / x.len() as f64 + EPS).sqrt();
        let gains = self.values(&format!("{name}.weight"));
        x.iter()
            .zip(gains)
            .map(|(x, gain)| scale * gain * x)
            .collect()
    }

    /// Returns the norm of every head, times silu of the gate.
    pub fn finish(&self, heads: &[Vector], h: &[f64], gate: &str) -> Vector {
        let normed = heads.iter().flat_map(|head| self.rms("o_norm", head));
        let gate = self.apply(gate, h);
        normed.zip(gate).map(|(o, gate)| o * silu(gate)).collect()
    }
}

/// A state `[dk][dv]`.
pub type State = Vec<Vector>;

pub fn state(dk: usize, dv: usize) -> State {
    vec![vec![0.0; dv]; dk]
}

pub fn read(state: &State, key: &[f64]) -> Vector {
    let width = state[0].len();
    let column = |d: usize| state.iter().zip(key).map(|(row, k)| k * row[d]).sum();
    (0..width).map(column).collect()
}

/// `S <- diag(decay) S + k^T v`.
pub fn write(state: &mut State, factor: impl Fn(usize) -> f64, k: &[f64], v: &[f64]) {
    for (i, row) in state.iter_mut().enumerate() {
        for (x, v) in row.iter_mut().zip(v) {
            *x = factor(i) * *x + k[i] * v;
        }
    }
}
