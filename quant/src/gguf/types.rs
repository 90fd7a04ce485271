//! ggml's tensor types: their names, and the block length of type 42.

use super::TensorInfo;
use crate::error::{Error, Result};
use crate::format::Format;
use crate::formats::q2_0::{PQ2_0, Q2_0};

/// The types that this crate does not read. ggml itself has dropped 4, 5, 31 to 33 and 36 to 38.
const UNREAD: [(u32, &str); 14] = [
    (4, "Q4_2"),
    (5, "Q4_3"),
    (9, "Q8_1"),
    (15, "Q8_K"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (36, "IQ4_NL_4_4"),
    (37, "IQ4_NL_4_8"),
    (38, "IQ4_NL_8_8"),
];

/// A type's number and, if ggml has the type, its name.
pub(super) fn describe(ggml_type: u32) -> String {
    match UNREAD.iter().find(|(number, _)| *number == ggml_type) {
        Some((_, name)) => format!("ggml type {ggml_type} ({name})"),
        None => format!("ggml type {ggml_type}"),
    }
}

/// Finds out whether the tensors of type 42 have blocks of 64 numbers, as in ggml, or of 128, as in the first published ternary files, and
/// gives the latter the number of [`PQ2_0`]. Nothing but the distances between tensors tells.
///
/// # Errors
/// Both lengths fit all distances, or neither does.
pub(super) fn settle_q2_0(
    tensors: &mut [TensorInfo],
    alignment: u64,
    data_len: usize,
    file: &str,
) -> Result<()> {
    let has_values = |tensor: &&TensorInfo| !tensor.shape.contains(&0);
    if !tensors
        .iter()
        .any(|tensor| tensor.ggml_type == Q2_0.ggml_type)
    {
        return Ok(());
    }
    let mut starts: Vec<usize> = tensors
        .iter()
        .filter(has_values)
        .map(|tensor| tensor.offset)
        .collect();
    starts.sort_unstable();
    let fits = |format: &Format, tensor: &TensorInfo| {
        let Ok(len) = format.tensor_bytes(&tensor.shape) else {
            return false;
        };
        let padded = (len as u64).next_multiple_of(alignment);
        match starts.get(starts.partition_point(|&start| start <= tensor.offset)) {
            Some(next) => (next - tensor.offset) as u64 == padded,
            // The padding after the last tensor may be missing.
            None => {
                let rest = data_len.saturating_sub(tensor.offset);
                len <= rest && rest as u64 <= padded
            }
        }
    };
    let mut unsettled = tensors
        .iter()
        .filter(|tensor| tensor.ggml_type == Q2_0.ggml_type);
    let all_fit = |format| {
        unsettled
            .clone()
            .filter(has_values)
            .all(|tensor| fits(format, tensor))
    };
    match (all_fit(&Q2_0), all_fit(&PQ2_0)) {
        (true, false) => Ok(()),
        (false, true) => {
            for tensor in tensors {
                if tensor.ggml_type == Q2_0.ggml_type {
                    tensor.ggml_type = PQ2_0.ggml_type;
                }
            }
            Ok(())
        }
        (both, _) => {
            let name = unsettled.next().map_or("", |tensor| &tensor.name);
            let fit = if both { "both fit" } else { "neither fits" };
            let found = format!(
                "ggml type 42 (Q2_0), whose block length the distances between tensors do not tell: {fit}"
            );
            let expected = "distances for blocks of 64 numbers in 18 bytes, or of 128 in 34 bytes";
            Err(Error::invalid(
                file,
                format!("tensor '{name}'"),
                found,
                expected,
            ))
        }
    }
}
