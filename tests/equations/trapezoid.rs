//! Mamba-3: the trapezoidal rule, with both writes of a token, and rotated keys.

use std::f64::consts::PI;

use serde_json::json;

use super::plain::{EPS, Plain, Vector, dot, read, sigmoid, silu, softplus, state, write};
use super::{DK, DV, HEADS, KV_HEADS, compare, head};

/// Returns the normed key plus its bias, rotated by the angles.
fn turned(w: &Plain, name: &str, x: &[f64], h: usize, angles: &[f64]) -> Vector {
    let bias = w.values(&format!("{name}_bias"));
    let normed = w.rms(&format!("{name}_norm"), x);
    let mut x: Vector = normed
        .iter()
        .zip(head(&bias, h, DK))
        .map(|(x, b)| x + b)
        .collect();
    for (i, angle) in angles.iter().enumerate() {
        let ((sin, cos), (a, b)) = (angle.sin_cos(), (x[2 * i], x[2 * i + 1]));
        (x[2 * i], x[2 * i + 1]) = (a * cos - b * sin, a * sin + b * cos);
    }
    x
}

#[test]
fn mamba3_follows_the_trapezoidal_rule() {
    for (pairs, least_rate, norm) in [(1, 0.0, false), (3, 0.8, false), (2, 0.0, true)] {
        let parameters = json!({
            "heads": HEADS, "head_dim": DV, "groups": KV_HEADS, "state": DK, "pairs": pairs, "bias": false,
            "least_rate": least_rate, "norm": norm, "norm_eps": EPS,
        });
        let mut states = vec![state(DK, DV); HEADS];
        let mut angles = vec![vec![0.0; pairs]; HEADS];
        let mut before = vec![(vec![0.0; DK], vec![0.0; DV]); HEADS];
        compare("mamba3", parameters, |w, _, u| {
            let projected = w.apply("in_proj", u);
            let mut rest = &projected[..];
            let mut take = |width: usize| {
                let (first, others) = rest.split_at(width);
                rest = others;
                first
            };
            let (z, x) = (take(HEADS * DV), take(HEADS * DV));
            let (b, c) = (take(KV_HEADS * DK), take(KV_HEADS * DK));
            let (steps, rates, shares, turns) =
                (take(HEADS), take(HEADS), take(HEADS), take(pairs));
            let mut out = Vec::new();
            for h in 0..HEADS {
                let group = h / (HEADS / KV_HEADS);
                let step = softplus(steps[h] + w.values("dt_bias")[h]);
                let decay = (-softplus(rates[h]).max(least_rate) * step).exp();
                let share = sigmoid(shares[h]);
                for (angle, turn) in angles[h].iter_mut().zip(turns) {
                    *angle += PI * turn.tanh() * step;
                }
                let key = turned(w, "B", head(b, group, DK), h, &angles[h]);
                let query = turned(w, "C", head(c, group, DK), h, &angles[h]);
                let value = head(x, h, DV);
                let scaled =
                    |k: &[f64], factor: f64| -> Vector { k.iter().map(|k| factor * k).collect() };
                let (last_key, last_value) = &before[h];
                let last = scaled(last_key, (1.0 - share) * step * decay);
                write(&mut states[h], |_| decay, &last, last_value);
                write(&mut states[h], |_| 1.0, &scaled(&key, share * step), value);
                let skip = w.values("D")[h];
                let mut o = read(&states[h], &query);
                o.iter_mut().zip(value).for_each(|(o, v)| *o += skip * v);
                if norm {
                    let scale = 1.0 / (dot(&o, &o) / DV as f64 + EPS).sqrt();
                    let gains = w.values("norm.weight");
                    o.iter_mut()
                        .zip(head(&gains, h, DV))
                        .for_each(|(o, gain)| *o *= scale * gain);
                }
                out.extend(o.iter().zip(head(z, h, DV)).map(|(o, z)| o * silu(*z)));
                before[h] = (key, value.to_vec());
            }
            out
        });
    }
}
