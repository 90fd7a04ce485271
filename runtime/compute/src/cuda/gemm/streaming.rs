//! The streaming GEMV of the decode kernel: matrices times one token's input, with weights from the pipeline. Builds the arguments of
//! `cuda/decode/gemv.cu`.

use waterline_quant::Rounding;

use crate::abi::device_enum;
use crate::cuda::driver::TensorCores;
use crate::cuda::gemm::{Prologue, PrologueFlag, StepKind, WeightMatrix, format_of, formats_of};
use crate::cuda::schedule::{
    Call, Epilogue, Gemv, Grid, Launches, Node, Parameter, Rows, StreamedMatrix,
};
use crate::error::Result;
use crate::functions::Activation;

/// Returns the kind of an epilogue and the number of its function.
fn numbers(epilogue: Epilogue) -> (i32, i32) {
    let (kind, function) = match epilogue {
        Epilogue::Store => (EpilogueKind::Store, Activation::Identity),
        Epilogue::Add => (EpilogueKind::Add, Activation::Identity),
        Epilogue::Gated(function) => (EpilogueKind::Gated, function),
    };
    (kind as i32, function as i32)
}

device_enum! {
    /// Kinds of [`Epilogue`] as numbers.
    pub(in crate::cuda) enum EpilogueKind("EPILOGUE_") {
        Store,
        Add,
        Gated,
    }
}

impl Launches<'_> {
    /// Appends a streaming GEMV to a decode program; returns false in another program, or if the weights cannot go through the pipeline.
    pub(in crate::cuda) fn push_streaming_gemv(
        &mut self,
        prologue: Prologue,
        weights: &[WeightMatrix],
        rounding: Option<Rounding>,
        output: Rows,
        epilogue: Epilogue,
    ) -> Result<bool> {
        if !self.persistent {
            return Ok(false);
        }
        let formats = formats_of(weights);
        let weights = (weights.iter())
            .map(|weight| self.streamed_matrix(weight))
            .collect::<Result<Option<Vec<_>>>>()?;
        let Some(weights) = weights else {
            return Ok(false);
        };
        let mut gemv = Gemv {
            epilogue,
            input: prologue.columns(weights[0].cols),
            added: prologue.columns_of(StepKind::Add, weights[0].cols),
            gates: prologue.columns_of(StepKind::Gate, weights[0].cols),
            has_odd_norm: prologue.has_odd_norm(weights[0].cols),
            weights,
            output,
            row_ops: None,
        };
        // Split into three bf16 numbers, the input would leave the pipeline too little shared memory.
        if gemv.input_bytes() > self.limits.shared_memory / 2 {
            let weights = gemv.weights.iter_mut();
            weights.for_each(|weight| weight.on_tensor_cores = false);
        }
        let cols = gemv.cols();
        let (number, function) = numbers(epilogue);
        let [codes_at, parts_at, bytes] = gemv.input_ends();
        // Rounding before the factor is applied may give a value near a tie another code, and changes values in 16 bits.
        let rounds_late = match rounding {
            Some(rounding) => rounding.is_integer() && !self.has_routing,
            None => true,
        };
        let norm = prologue.late_norm(cols).filter(|_| rounds_late);
        let by_super_blocks = rounding == Some(Rounding::SuperBlocks);
        let more = [
            (prologue.in_quads(cols), PrologueFlag::Quads),
            (
                by_super_blocks && prologue.in_octets(cols),
                PrologueFlag::WarpHasSuperBlock,
            ),
            (norm.is_some(), PrologueFlag::LateNorm),
        ];
        let flags = prologue.all_flags(cols) | PrologueFlag::set(&more);
        let call = Call {
            source: &[],
            kernel: format!(
                "streaming_gemv<mailboxes, {number}, {function}, {cols}, {flags}, {formats}, {}, {codes_at}, {parts_at}, {bytes}>",
                Rounding::device_number(rounding)
            ),
            grid: Grid::Blocks(1),
            threads: self.prologue_threads(),
            shared: 0,
            parameters: vec![
                Parameter::value(output),
                // Epsilon of a late norm.
                Parameter::value(norm.unwrap_or(0.0)),
                Parameter::value(prologue),
            ],
        };
        self.push_node(call, Node::Gemv(gemv));
        Ok(true)
    }

    /// Describes a matrix as the pipeline reads it; returns `None` if its rows are not aligned.
    fn streamed_matrix(&self, weight: &WeightMatrix) -> Result<Option<StreamedMatrix>> {
        let matrix = weight.matrix;
        let format = matrix.format().plain();
        let blocks = matrix.cols() / format.block_len;
        let scales = format.device_apart_bytes();
        let weight = StreamedMatrix {
            codes: self.matrix_address(matrix)?,
            scales: 0,
            bias: self.optional_address(weight.bias)?,
            multiplier: weight.multiplier,
            code_row: blocks * (format.block_bytes - scales),
            scale_row: blocks * scales,
            rows: matrix.rows(),
            cols: matrix.cols(),
            column: weight.column,
            format: format_of(matrix),
            on_tensor_cores: format.name == "BF16"
                && self.limits.tensor_cores != TensorCores::None
                && matrix.cols().is_multiple_of(32),
            row_op: None,
        };
        let scales = weight.codes + (weight.rows * weight.code_row) as u64;
        // A tile may begin at any multiple of eight rows.
        let aligned =
            weight.code_row.is_multiple_of(16) && (8 * weight.scale_row).is_multiple_of(16);
        Ok(aligned.then_some(StreamedMatrix { scales, ..weight }))
    }
}
