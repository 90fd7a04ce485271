//! Rotary position embedding of cached keys, and moving cached keys to other positions.

use half::f16;

use super::StateDtype;

/// The rotary embedding of cached keys. In each head's values from `first` on, pair `i` turns by `frequencies[i]` per token. A pair takes
/// one value from each half of the turned values.
#[derive(Debug, Clone, PartialEq)]
pub struct Rotary {
    /// The first value that turns.
    pub first: usize,
    /// Angle per token of each pair; always finite.
    pub frequencies: Vec<f32>,
}

impl Eq for Rotary {}

impl Rotary {
    /// Turns keys `[count, width]` forward by `tokens` positions.
    pub fn turn(&self, bytes: &mut [u8], count: usize, dtype: StateDtype, tokens: usize) {
        let value = dtype.bytes();
        let pairs = self.frequencies.len();
        for key in bytes.chunks_exact_mut(bytes.len() / count) {
            for (pair, &frequency) in self.frequencies.iter().enumerate() {
                let (sin, cos) = (tokens as f64 * f64::from(frequency)).sin_cos();
                let [a, b] = [pair, pair + pairs].map(|i| (self.first + i) * value);
                let (x, y) = (read(&key[a..], dtype), read(&key[b..], dtype));
                write(&mut key[a..], dtype, x * cos - y * sin);
                write(&mut key[b..], dtype, y * cos + x * sin);
            }
        }
    }
}

fn read(bytes: &[u8], dtype: StateDtype) -> f64 {
    match dtype {
        StateDtype::F16 => f16::from_le_bytes([bytes[0], bytes[1]]).to_f64(),
        _ => f64::from(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
    }
}

fn write(bytes: &mut [u8], dtype: StateDtype, value: f64) {
    match dtype {
        StateDtype::F16 => bytes[..2].copy_from_slice(&f16::from_f64(value).to_le_bytes()),
        _ => bytes[..4].copy_from_slice(&(value as f32).to_le_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_turn_as_rotary_positions_do() {
        let rotary = Rotary {
            first: 1,
            frequencies: vec![0.5, 0.01],
        };
        let key = [9.0f32, 1.0, 2.0, 3.0, 4.0, 7.0];
        let at = |position: f64| -> Vec<f32> {
            let mut turned = key;
            for (pair, frequency) in [0.5f64, 0.01].into_iter().enumerate() {
                let (sin, cos) = (position * frequency).sin_cos();
                let (x, y) = (f64::from(key[1 + pair]), f64::from(key[3 + pair]));
                turned[1 + pair] = (x * cos - y * sin) as f32;
                turned[3 + pair] = (y * cos + x * sin) as f32;
            }
            turned.to_vec()
        };
        let bytes = |values: Vec<f32>| -> Vec<u8> {
            values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect()
        };
        let mut found = bytes(at(3.0));
        rotary.turn(&mut found, 1, StateDtype::F32, 12);
        let expected = bytes(at(15.0));
        for (a, b) in found.as_chunks().0.iter().zip(expected.as_chunks().0) {
            let (a, b) = (f32::from_le_bytes(*a), f32::from_le_bytes(*b));
            assert!((a - b).abs() < 1e-5, "{a} {b}");
        }
    }
}
