//! The record of an op in the table that the decode kernel walks.

use crate::abi::device_struct;
use crate::cuda::driver::Address;

/// Producer warps of a block.
pub(super) const PRODUCER_WARPS: usize = 2;

device_struct! {
    /// An op in the table of ops; its parameters follow.
    #[repr(align(16))]
    pub(super) struct OpRecord {
        /// The function to run.
        pub function: i32,
        /// The op's grid.
        pub grid: [u32; 2],
        pub threads: u32,
        /// A GEMV's first segment of weights in each block's list, and their number; see pipeline.cu.
        pub segment: i32,
        pub segments: i32,
        /// Offset of the epilogue's row ops among the parameters.
        pub row_ops: i32,
        /// Whether the output is stored in its buffer too.
        pub stores: i32,
        /// Mailbox of a GEMV's input.
        pub input: Address as *mut f32,
        /// Mailbox of the columns that are added to the input.
        pub added: Address as *mut f32,
        /// Mailbox of the columns that gate the input.
        pub gates: Address as *mut f32,
        /// Mailbox of the op's output. An op without it ends with a grid barrier.
        pub output: Address as *mut f32,
        /// Mailbox of the earlier output that the op adds to.
        pub sum: Address as *mut f32,
        /// Block b of the grid of SMs runs block b + shift of the op, modulo the number of SMs.
        pub shift: u32,
        /// The slot whose token the op reads; 0 if it reads those of all slots.
        pub slot: u32,
    }
}

/// The parameter of a GEMV that holds the row ops of its epilogue.
pub(super) const ROW_OPS_PARAMETER: usize = 3;
