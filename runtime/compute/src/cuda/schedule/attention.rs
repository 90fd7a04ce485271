//! Arguments of attention: `attend.cu` and `retain.cu`.

use std::ffi::c_void;
use std::ops::Range;

use super::{Parameter, Rows};
use crate::abi::device_struct;
use crate::cuda::driver::Address;

device_struct! {
    /// The inputs of rotated queries and keys, and of their values.
    pub(crate) struct RotaryInputs {
        /// Queries, keys and values.
        pub columns: [Rows; 3],
        /// Angles per position of the rotated pairs of values.
        pub frequencies: Address as *const f32,
        /// The number of pairs.
        pub pairs: i32,
        /// Multiplies cosines and sines.
        pub magnitude: f32,
    }
}

device_struct! {
    /// Attention to a segment of recent tokens, and to a set of others where tokens are retained.
    pub(crate) struct Attended {
        pub q: Rows,
        pub k: Rows,
        pub v: Rows,
        pub out: Rows,
        /// The inputs where a single token attends to a set. If pairs are rotated there, `k` and `v` are other columns, else the same.
        pub from: RotaryInputs,
        pub keys: Address as *mut c_void,
        pub values: Address as *mut c_void,
        pub set_keys: Address as *mut c_void,
        pub set_values: Address as *mut c_void,
        /// For each row of the set, the first token of the chunk that takes the row, or `never`.
        pub gone: Address as *mut i32,
        /// For each token t of the chunk, the first token that no longer sees the token that t pushes out of the window.
        pub until: Address as *mut i32,
        /// For each token t of the chunk, the set row for the token that t pushes out of the window, or -1.
        pub taken: Address as *mut i32,
        /// Number of retained tokens before the chunk.
        pub counts: Address as *mut i32,
        /// The chunk's keys and values in f16, `[kv_heads, tokens, head_dim]`.
        pub own_keys: Address as *mut c_void,
        pub own_values: Address as *mut c_void,
        /// Partial softmaxes `[tokens, heads, splits, head_dim + 2]`.
        pub parts: Address as *mut f32,
        /// The score of each query head's sink, or null.
        pub sinks: Address as *const f32,
        pub scale: f32,
        pub heads: i32,
        pub kv_heads: i32,
        /// Rows of the segment.
        pub rows: i32,
        /// Capacity of the set, in tokens.
        pub capacity: i32,
        /// Tokens of the largest chunk.
        pub chunk: i32,
    }
}

device_struct! {
    /// The set of retained tokens, and the policy that evicts them.
    pub(crate) struct Retained {
        /// Scores of the learned policy: row t is the score of the token `margin` before the chunk's token t.
        pub router: Rows,
        pub window_scores: Address as *mut f32,
        pub set_scores: Address as *mut f32,
        /// The position of each token of the set, plus one.
        pub set_positions: Address as *mut u64,
        pub counts: Address as *mut u32,
        /// Scores of the tokens that leave the window `[kv_heads, chunk]`.
        pub leaving: Address as *mut f32,
        /// For each row of the set, the last token of the chunk stored in it.
        pub occupants: Address as *mut i32,
        pub sink: i32,
        pub margin: i32,
        pub every: i32,
        pub pad: i32,
    }
}

/// A kernel of attention.
#[derive(Clone)]
pub struct Attention {
    pub(crate) attended: Attended,
    /// The second argument of kernels that choose the retained tokens.
    pub(crate) retained: Option<Retained>,
    /// Whether the kernel calls `wait_for_dependencies` itself.
    pub(crate) prefetches: bool,
    /// How the kernel takes over the rotation of its inputs; `None` if it cannot.
    pub(crate) rotation: Option<Rotation>,
    /// Where the kernel stores the token's score, which a router may have stored before.
    pub(crate) stored_score: Option<Range<Address>>,
}

/// The way in which a single token's query and key are rotated in attention.
#[derive(Clone, Copy)]
pub(crate) struct Rotation {
    pub head_dim: usize,
    /// Addresses where the rotated key and its value stay until they are cached.
    pub cached: [Address; 2],
    /// Whether this kernel rotates; otherwise it reads a key that another kernel of the op has rotated.
    pub rotates: bool,
}

impl Attention {
    /// Attention whose inputs are as they are in their columns.
    pub(crate) fn new(attended: Attended) -> Self {
        Attention {
            attended,
            retained: None,
            prefetches: false,
            rotation: None,
            stored_score: None,
        }
    }

    /// Returns the columns of queries, keys and values.
    pub(crate) fn columns(&self) -> [Rows; 3] {
        [self.attended.q, self.attended.k, self.attended.v]
    }

    /// Returns the kernel's first parameters.
    pub(super) fn arguments(&self) -> Vec<Parameter> {
        let first = Parameter::value(self.attended);
        let second = self.retained.map(Parameter::value);
        [first].into_iter().chain(second).collect()
    }
}
