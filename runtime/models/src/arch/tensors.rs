//! Conversions of tensors from a checkpoint's layout to ours.

use std::ops::Range;

use waterline_quant::{Bytes, F32, Tensor, ask_room};

use crate::error::{Error, Result};

/// The rows `ranges` of a tensor, one after another; a row is everything at one index of the first dimension. A single
/// range is not copied.
pub(super) fn rows(name: &str, tensor: &Tensor, ranges: &[Range<usize>]) -> Result<Tensor> {
    let count = tensor.shape.first().copied().unwrap_or(0);
    if count == 0 || ranges.iter().any(|r| r.start >= r.end || r.end > count) {
        return Err(Error::Tensor {
            file: "the checkpoint".into(),
            name: name.into(),
            found: format!("shape {:?}", tensor.shape),
            expected: format!(
                "at least {} rows",
                ranges.iter().map(|r| r.end).max().unwrap_or(0)
            ),
        });
    }
    let bytes = tensor.data.len() / count;
    let span = |r: &Range<usize>| r.start * bytes..r.end * bytes;
    let data = match ranges {
        [range] => tensor.data.slice(span(range)),
        _ => {
            let parts: Vec<&[u8]> = ranges.iter().map(|r| &tensor.data[span(r)]).collect();
            Bytes::concat(&parts)?
        }
    };
    let mut shape = tensor.shape.clone();
    shape[0] = ranges.iter().map(Range::len).sum();
    Ok(Tensor::new(tensor.format, shape, data)?)
}

/// Stacks tensors of one format as the rows of a tensor of shape `shape`.
pub(super) fn stacked(name: &str, parts: &[Tensor], shape: &[usize]) -> Result<Tensor> {
    let rows = |part: &Tensor| part.shape.first().copied().unwrap_or(0);
    let fits = |part: &Tensor| {
        part.shape.get(1..) == shape.get(1..) && part.format.ggml_type == parts[0].format.ggml_type
    };
    if !parts.iter().all(fits) || Some(&parts.iter().map(rows).sum()) != shape.first() {
        let found: Vec<_> = parts.iter().map(|p| (p.format.name, &p.shape)).collect();
        return Err(Error::Tensor {
            file: "the checkpoint".into(),
            name: name.into(),
            found: format!("{found:?}"),
            expected: format!("parts of one format that together have the shape {shape:?}"),
        });
    }
    let data: Vec<&[u8]> = parts.iter().map(|part| &part.data[..]).collect();
    Ok(Tensor::new(
        parts[0].format,
        shape.to_vec(),
        Bytes::concat(&data)?,
    )?)
}

/// The rows `part` of each group, for rows in `groups` groups of equal length.
pub(super) fn rows_of_groups(
    name: &str,
    tensor: &Tensor,
    groups: usize,
    part: Range<usize>,
) -> Result<Tensor> {
    let length = tensor.shape.first().map_or(0, |rows| rows / groups.max(1));
    // A part beyond its group would read another group's rows, and a huge number of empty groups would need too much memory.
    if part.end > length {
        return Err(Error::Tensor {
            file: "the checkpoint".into(),
            name: name.into(),
            found: format!("shape {:?}", tensor.shape),
            expected: format!("{groups} groups of {} rows or more", part.end),
        });
    }
    let ranges: Vec<Range<usize>> = (0..groups)
        .map(|group| group * length + part.start..group * length + part.end)
        .collect();
    rows(name, tensor, &ranges)
}

/// Reorders the rows of heads whose channels `turned` rotate with the position. The file stores the two channels of a pair
/// next to each other; the result has them half the rotated width apart: `ours[i + s turned / 2] = stored[2 i + s]`.
pub(super) fn halves(
    name: &str,
    tensor: &Tensor,
    head_dim: usize,
    turned: Range<usize>,
) -> Result<Tensor> {
    let count = tensor.shape.first().copied().unwrap_or(0);
    if head_dim == 0 || !count.is_multiple_of(head_dim) || turned.end > head_dim {
        return Err(Error::Tensor {
            file: "the checkpoint".into(),
            name: name.into(),
            found: format!("shape {:?}", tensor.shape),
            expected: format!("complete heads of {head_dim} rows each"),
        });
    }
    let half = turned.len() / 2;
    let stored = |row: usize| {
        let (head, channel) = (row / head_dim, row % head_dim);
        let from = match channel.checked_sub(turned.start) {
            Some(i) if i < half => turned.start + 2 * i,
            Some(i) if i < 2 * half => turned.start + 2 * (i - half) + 1,
            _ => channel,
        };
        head * head_dim + from
    };
    let order: Vec<_> = (0..count).map(stored).map(|row| row..row + 1).collect();
    rows(name, tensor, &order)
}

/// Transposes each of `count` concatenated matrices.
pub(super) fn transposed(name: &str, tensor: &Tensor, count: usize) -> Result<Tensor> {
    let (all, cols) = tensor.rows_cols();
    if count == 0 || cols == 0 || !all.is_multiple_of(count) {
        return Err(Error::Tensor {
            file: "the checkpoint".into(),
            name: name.into(),
            found: format!("shape {:?}", tensor.shape),
            expected: format!("{count} matrices with equal numbers of rows"),
        });
    }
    let rows = all / count;
    // Where value `i` of the transposed matrices is stored.
    let at = |i: usize| (i / (rows * cols) * rows + i % rows) * cols + i / rows % cols;
    let shape = vec![count * cols, rows];
    ask_room_for_copies(&shape, 3)?;
    if tensor.format.block_len > 1 {
        let values = tensor.to_f32();
        let values: Vec<f32> = (0..values.len()).map(|i| values[at(i)]).collect();
        return from_f32(&shape, &values);
    }
    let size = tensor.format.block_bytes;
    let number = |i: usize| &tensor.data[at(i) * size..][..size];
    let data: Vec<u8> = (0..tensor.len()).flat_map(number).copied().collect();
    Ok(Tensor::new(tensor.format, shape, Bytes::copy_from(&data)?)?)
}

/// The gains of a norm, which are stored as their distance from one.
pub(super) fn one_plus(tensor: &Tensor) -> Result<Tensor> {
    ask_room_for_copies(&tensor.shape, 3)?;
    let gains: Vec<f32> = tensor.to_f32().into_iter().map(|w| 1.0 + w).collect();
    from_f32(&tensor.shape, &gains)
}

/// Negative values that are stored as the logarithm of their magnitude.
pub(super) fn minus_exp(tensor: &Tensor) -> Result<Tensor> {
    ask_room_for_copies(&tensor.shape, 3)?;
    let values: Vec<f32> = tensor.to_f32().into_iter().map(|x| -x.exp()).collect();
    from_f32(&tensor.shape, &values)
}

/// Normally distributed values that depend only on the seed (SplitMix64, then the Box-Muller transform).
pub(super) fn normal(shape: &[usize], seed: u64) -> Result<Tensor> {
    let mut state = seed;
    let mut uniform = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        // Above zero, up to one.
        ((x ^ x >> 31) >> 11) as f64 / (1u64 << 53) as f64 + f64::EPSILON / 2.0
    };
    let mut draw = || {
        let radius = (-2.0 * uniform().ln()).sqrt();
        (radius * (std::f64::consts::TAU * uniform()).cos()) as f32
    };
    ask_room_for_copies(shape, 3)?;
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| draw()).collect();
    from_f32(shape, &values)
}

/// A tensor of computed values.
pub(super) fn from_f32(shape: &[usize], values: &[f32]) -> Result<Tensor> {
    let data: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    Ok(Tensor::new(&F32, shape.to_vec(), Bytes::copy_from(&data)?)?)
}

/// A vector of `length` equal numbers: the gains of a norm that has no weights.
pub(super) fn filled(length: usize, number: f32) -> Result<Tensor> {
    ask_room_for_copies(&[length], 3)?;
    from_f32(&[length], &vec![number; length])
}

/// Fails if there is not enough memory for `copies` f32 copies of a tensor.
fn ask_room_for_copies(shape: &[usize], copies: usize) -> Result<()> {
    let bytes = F32.tensor_bytes(shape)?;
    Ok(ask_room(bytes.saturating_mul(copies))?)
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;

    fn tensor(shape: &[usize]) -> Tensor {
        let values = 0..shape.iter().product::<usize>();
        let data = values.flat_map(|i| (i as f32).to_le_bytes()).collect();
        Tensor::new(&F32, shape.to_vec(), Bytes::from_vec(data)).expect("a tensor")
    }

    #[test]
    fn rows_are_picked_in_order() {
        let from = tensor(&[6, 1, 2]);
        let one = rows("x", &from, from_ref(&(1..3))).expect("rows");
        assert_eq!(
            (one.shape.clone(), one.to_f32()),
            (vec![2, 1, 2], vec![2.0, 3.0, 4.0, 5.0])
        );
        let parts = rows_of_groups("x", &from, 2, 1..2).expect("rows");
        assert_eq!(
            (parts.shape.clone(), parts.to_f32()),
            (vec![2, 1, 2], vec![2.0, 3.0, 8.0, 9.0])
        );
        assert!(rows("x", &from, from_ref(&(4..7))).is_err());
        assert!(rows_of_groups("x", &from, 1 << 40, 0..1).is_err());
        assert!(rows("x", &tensor(&[0]), from_ref(&(0..1))).is_err());
    }

    #[test]
    fn pairs_that_turn_come_apart_by_half() {
        let heads = halves("x", &tensor(&[10, 1]), 5, 1..5).expect("rows");
        let expected = [0, 1, 3, 2, 4, 5, 6, 8, 7, 9].map(|x| x as f32);
        assert_eq!(heads.to_f32(), expected);
        assert!(halves("x", &tensor(&[10, 1]), 4, 0..4).is_err());
        assert!(halves("x", &tensor(&[10, 1]), 5, 0..6).is_err());
    }

    #[test]
    fn matrices_are_transposed_one_by_one() {
        let two = transposed("x", &tensor(&[4, 3]), 2).expect("matrices");
        let expected = [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11].map(|x| x as f32);
        assert_eq!(
            (two.shape.clone(), two.to_f32()),
            (vec![6, 2], expected.to_vec())
        );
        assert!(transposed("x", &tensor(&[4, 3]), 3).is_err());
        assert!(transposed("x", &tensor(&[0, 3]), 0).is_err());
    }

    #[test]
    fn drawn_values_are_normal_and_the_seeds() {
        let draw = |seed| normal(&[100, 50], seed).expect("a tensor").to_f32();
        let values = draw(3);
        assert_eq!(values, draw(3));
        assert_ne!(values, draw(4));
        let mean = |f: fn(f32) -> f32| values.iter().map(|&x| f(x)).sum::<f32>() / 5000.0;
        assert!(mean(|x| x).abs() < 0.05);
        assert!((mean(|x| x * x) - 1.0).abs() < 0.1);
        assert!((mean(|x| x.powi(4)) - 3.0).abs() < 0.5);
    }

    #[test]
    fn gains_are_counted_from_one() {
        assert_eq!(
            one_plus(&tensor(&[3])).expect("gains").to_f32(),
            [1.0, 2.0, 3.0]
        );
    }
}
