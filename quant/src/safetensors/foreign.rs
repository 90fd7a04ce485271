//! Recognition of quantizations that this crate does not read, by the names of their tensors.

use safetensors::tensor::Dtype;

use super::Checkpoint;

/// Suffixes of tensor names, and the quantization that uses each.
const MARKS: [(&str, &str); 11] = [
    (".qzeros", "GPTQ or AWQ"),
    (".qweight", "GPTQ or AWQ"),
    (".absmax", "bitsandbytes"),
    (".quant_map", "bitsandbytes"),
    (".SCB", "bitsandbytes"),
    (".W_q", "HQQ"),
    (".codebooks", "AQLM"),
    (".SU", "QuIP or EXL3"),
    (".trellis", "EXL3"),
    (".q_weight", "EXL2"),
    (".weight_format", "bitsandbytes"),
];

impl Checkpoint {
    /// Returns the quantization that the tensors reveal, if it is one that this crate does not read.
    pub fn foreign_quantization(&self) -> Option<&'static str> {
        let marked = self.names().find_map(|name| {
            let mark = MARKS.iter().find(|(end, _)| name.ends_with(end));
            mark.map(|(_, quantization)| *quantization)
        });
        marked.or_else(|| self.has_words().then_some("MLX"))
    }

    /// Whether matrices are 32-bit words with scales next to them, as MLX stores them.
    fn has_words(&self) -> bool {
        self.entries.iter().any(|(name, entry)| {
            let base = name.strip_suffix(".weight");
            let scales = base.map(|base| format!("{base}.scales"));
            entry.dtype == Dtype::U32 && scales.is_some_and(|scales| self.contains(&scales))
        })
    }
}
