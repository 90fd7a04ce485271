//! Times of the ops of a step, on any backend.

/// The time that one op of a step took: in clock cycles of the first SM, or in nanoseconds on a CPU.
#[derive(Clone, Debug)]
pub struct OpTime {
    /// The op's function on a GPU; the op's name and the size of its weights on a CPU.
    pub function: String,
    /// Until the op's input was complete. Zero on a CPU, where an op begins when the previous one has ended.
    pub wait: u64,
    /// From then to the op's end.
    pub work: u64,
}
