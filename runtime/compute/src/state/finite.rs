//! Whether the values of a state from a file are finite: a NaN in a recurrent state stays there.

use super::plan::{LOGITS, StateDtype, StateTensorPlan};

/// Names of tensors end with this word if their values may be infinite: a sink's score is, so that it never leaves its set.
const SCORES: &str = "scores";

/// Whether bytes of a state tensor are values that a state can have. The last logits, tensor number [`LOGITS`], may be minus infinity: such
/// tokens are never chosen.
pub fn is_sound(index: Option<usize>, tensor: &StateTensorPlan, bytes: &[u8]) -> bool {
    if index == Some(LOGITS) || tensor.name.ends_with(SCORES) {
        has_no_nan(bytes)
    } else {
        is_finite(tensor.dtype, bytes)
    }
}

fn is_finite(dtype: StateDtype, bytes: &[u8]) -> bool {
    match dtype {
        StateDtype::F16 => all(bytes.as_chunks().0, |bits| {
            u16::from_le_bytes(bits) & 0x7c00 != 0x7c00
        }),
        StateDtype::F32 | StateDtype::Kv => all(bytes.as_chunks().0, |bits| {
            u32::from_le_bytes(bits) & 0x7f80_0000 != 0x7f80_0000
        }),
        StateDtype::U32 | StateDtype::U64 => true,
    }
}

/// Whether no 32-bit float is NaN.
fn has_no_nan(bytes: &[u8]) -> bool {
    all(bytes.as_chunks().0, |bits| {
        !f32::from_le_bytes(bits).is_nan()
    })
}

/// Tests all values, without a branch in the loop.
fn all<const N: usize>(values: &[[u8; N]], is_sound: impl Fn([u8; N]) -> bool) -> bool {
    values
        .chunks(1024)
        .all(|values| values.iter().fold(true, |all, &bits| all & is_sound(bits)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_value_of_many_is_found() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 1023, 1024, 2999] {
                let mut values = vec![f32::MAX; 3000];
                assert!(is_finite(StateDtype::F32, bytemuck::cast_slice(&values)));
                values[at] = bad;
                let bytes = bytemuck::cast_slice(&values);
                assert!(!is_finite(StateDtype::F32, bytes));
                assert!(is_finite(StateDtype::U32, bytes));
                assert_eq!(has_no_nan(bytes), !bad.is_nan());
                let mut halves = vec![half::f16::MAX.to_bits(); 3000];
                assert!(is_finite(StateDtype::F16, bytemuck::cast_slice(&halves)));
                halves[at] = half::f16::from_f32(bad).to_bits();
                assert!(!is_finite(StateDtype::F16, bytemuck::cast_slice(&halves)));
            }
        }
    }
}
