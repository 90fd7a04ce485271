//! The layout of a session's state tensors in its single buffer. Pure arithmetic: `inspect` prints the layout from a file's header alone.

use serde::{Deserialize, Serialize};

use super::Rotary;
use crate::error::{Error, Result};

/// The use of a state tensor; for reports, and for code that walks state tensors of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StateKind {
    /// A recurrent matrix.
    Matrix,
    /// The last inputs of a convolution, oldest first.
    Shift,
    /// A ring buffer: position `p` lies in row `p % rows`.
    Ring,
    /// A retained set of at most a fixed number of entries.
    Set,
    /// Counters and small values.
    Counter,
}

/// The type of a state tensor's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StateDtype {
    /// 32-bit float.
    F32,
    /// 32-bit unsigned integer.
    U32,
    /// 64-bit unsigned integer.
    U64,
    /// A cached key or value, before [`StateOptions::kv`] gives its type.
    Kv,
    /// 16-bit float: a cached key or value in a laid-out plan.
    F16,
}

impl StateDtype {
    #[doc(hidden)]
    pub fn bytes(self) -> usize {
        match self {
            StateDtype::F16 => 2,
            StateDtype::F32 | StateDtype::U32 | StateDtype::Kv => 4,
            StateDtype::U64 => 8,
        }
    }
}

/// The valid range of a state tensor's counters. Counters of a state from outside are checked against it before they serve as an index or a
/// count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StateRange {
    /// Any value: the tensor never serves as an index or count.
    #[default]
    Any,
    /// At most this value.
    UpTo(u64),
    /// At most the number of tokens read so far.
    UpToPosition,
}

/// Largest position accepted in a state, in tokens: more than any session can read.
const MOST_TOKENS: u64 = 1 << 48;

/// A dimension of a state tensor: fixed by the model, or chosen when the session is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// Fixed by the model.
    Fixed(usize),
    /// The session's context, in tokens.
    Context,
    /// Blocks of this many tokens in the session's context.
    ContextBlocks(usize),
}

/// A state tensor of a mixer.
#[derive(Debug, Clone, PartialEq)]
pub struct StateTensor {
    /// Name of the tensor within the layer.
    pub name: &'static str,
    /// Shape, outermost dimension first.
    pub shape: Vec<Size>,
    /// Type of the values.
    pub dtype: StateDtype,
    /// How the tensor is used.
    pub kind: StateKind,
    range: StateRange,
    rotary: Option<Rotary>,
}

impl StateTensor {
    /// Creates a state tensor whose dimensions all follow from the model.
    #[doc(hidden)]
    pub fn new(name: &'static str, kind: StateKind, dtype: StateDtype, shape: &[usize]) -> Self {
        StateTensor {
            name,
            shape: shape.iter().map(|&n| Size::Fixed(n)).collect(),
            dtype,
            kind,
            range: StateRange::Any,
            rotary: None,
        }
    }

    /// Cached keys or values: `[heads, rows, width]`.
    #[doc(hidden)]
    pub fn cached(name: &'static str, shape: [Size; 3]) -> Self {
        StateTensor {
            shape: shape.to_vec(),
            ..StateTensor::new(name, StateKind::Ring, StateDtype::Kv, &[])
        }
    }

    /// Sets the valid range of the tensor's counters.
    pub fn within(self, range: StateRange) -> Self {
        StateTensor { range, ..self }
    }

    /// Sets the rotary embedding of the tensor's keys.
    pub fn turning(self, rotary: Option<Rotary>) -> Self {
        StateTensor { rotary, ..self }
    }
}

/// The type of cached keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kv {
    /// 16-bit floats.
    #[default]
    F16,
    /// 32-bit floats, for comparisons with recorded logits.
    F32,
}

impl Kv {
    /// Bytes per value.
    pub fn bytes(self) -> usize {
        match self {
            Kv::F16 => 2,
            Kv::F32 => 4,
        }
    }
}

/// User options for a session's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StateOptions {
    /// Number of tokens that full attention can look back on.
    pub context: usize,
    /// Type of cached keys and values.
    pub kv: Kv,
    /// Number of last tokens kept, for penalties and for reading them again after a rewind.
    pub history: usize,
}

impl Default for StateOptions {
    fn default() -> Self {
        StateOptions {
            context: 4096,
            kv: Kv::F16,
            history: 4096,
        }
    }
}

/// A state tensor with its place in the arena.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateTensorPlan {
    /// The layer of the tensor; `None` for the session's own state tensors.
    #[serde(alias = "block")]
    pub layer: Option<usize>,
    /// Name within the layer or the session.
    pub name: String,
    /// How the tensor is used.
    pub kind: StateKind,
    /// Type of the values.
    pub dtype: StateDtype,
    /// Shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// First byte in the arena; a multiple of 64.
    pub offset: usize,
    /// Bytes used.
    pub bytes: usize,
    /// Valid range of its counters. It follows from the model, so files do not store it.
    #[serde(skip)]
    range: StateRange,
    /// How its rows follow the context. Files do not store it.
    #[serde(skip)]
    growth: Option<Growth>,
    /// The rotary embedding of its keys. Files do not store it.
    #[serde(skip)]
    rotary: Option<Rotary>,
}

/// How a state tensor grows with the context: the dimension that counts rows, and the tokens per row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Growth {
    /// Index of the dimension in the shape.
    pub dimension: usize,
    /// Tokens per row.
    pub tokens: usize,
}

impl StateTensorPlan {
    /// The valid range of the tensor's counters.
    #[doc(hidden)]
    pub fn range(&self) -> StateRange {
        self.range
    }

    /// How the tensor's rows follow the context; `None` if they do not.
    pub(super) fn growth(&self) -> Option<Growth> {
        self.growth
    }

    /// The rotary embedding of the tensor's keys, if they have one.
    #[doc(hidden)]
    pub fn rotary(&self) -> Option<&Rotary> {
        self.rotary.as_ref()
    }

    /// Whether `other`, from a file, is an equal state tensor in the same place.
    #[doc(hidden)]
    pub fn lies_like(&self, other: &Self) -> bool {
        let other = StateTensorPlan {
            range: self.range,
            growth: self.growth,
            rotary: self.rotary.clone(),
            ..other.clone()
        };
        *self == other
    }
}

/// All state tensors of a session, in memory order. Ops rely on the tensors being disjoint and inside the arena, so only the layout code
/// creates plans.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StatePlan {
    tensors: Vec<StateTensorPlan>,
    bytes: usize,
}

/// The session's own state tensors come first: position, sampler, history, logits.
pub const HEADER: usize = 0;
pub const SAMPLER: usize = 1;
pub const HISTORY: usize = 2;
pub const LOGITS: usize = 3;

const ALIGNMENT: usize = 64;

impl StatePlan {
    /// Lays out the state of a session for a vocabulary of `vocab` tokens and these state tensors of each layer. Fails if the state exceeds
    /// the address range.
    #[doc(hidden)]
    pub fn new(
        vocab: usize,
        layers: impl IntoIterator<Item = Vec<StateTensor>>,
        options: &StateOptions,
    ) -> Result<Self> {
        if options.context == 0 || options.history == 0 {
            return Err(Error::invalid(
                "context and history",
                "must be at least one token",
            ));
        }
        let mut plan = StatePlan::default();
        let counter = |name, dtype, n| StateTensor::new(name, StateKind::Counter, dtype, &[n]);
        let position = counter("position", StateDtype::U64, 1);
        let position = position.within(StateRange::UpTo(MOST_TOKENS));
        plan.add(None, &position, options)?;
        plan.add(None, &counter("sampler", StateDtype::U64, 2), options)?;
        plan.add(
            None,
            &StateTensor::new(
                "history",
                StateKind::Ring,
                StateDtype::U32,
                &[options.history],
            )
            .within(StateRange::UpTo(vocab as u64 - 1)),
            options,
        )?;
        plan.add(None, &counter("logits", StateDtype::F32, vocab), options)?;
        for (i, tensors) in layers.into_iter().enumerate() {
            for tensor in tensors {
                plan.add(Some(i), &tensor, options)?;
            }
        }
        Ok(plan)
    }

    /// Returns the plan with these state tensors from a file; `None` if a plan would give them other offsets or sizes.
    pub(super) fn from_placed(tensors: Vec<StateTensorPlan>) -> Option<Self> {
        let mut bytes = 0usize;
        for tensor in &tensors {
            let mut sizes = tensor.shape.iter();
            let used = sizes.try_fold(tensor.dtype.bytes(), |n, &d| n.checked_mul(d));
            if tensor.offset != bytes || used != Some(tensor.bytes) {
                return None;
            }
            let end = bytes.checked_add(tensor.bytes)?;
            bytes = end.checked_next_multiple_of(ALIGNMENT)?;
        }
        Some(StatePlan { tensors, bytes })
    }

    /// The state tensors.
    pub fn tensors(&self) -> &[StateTensorPlan] {
        &self.tensors
    }

    /// Size of the arena in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn add(
        &mut self,
        layer: Option<usize>,
        tensor: &StateTensor,
        options: &StateOptions,
    ) -> Result<()> {
        let shape: Vec<usize> = tensor
            .shape
            .iter()
            .map(|size| match size {
                Size::Fixed(n) => *n,
                Size::Context => options.context,
                Size::ContextBlocks(tokens) => options.context.div_ceil(*tokens),
            })
            .collect();
        let growth = tensor
            .shape
            .iter()
            .enumerate()
            .find_map(|(dimension, size)| {
                let tokens = match size {
                    Size::Fixed(_) => return None,
                    Size::Context => 1,
                    Size::ContextBlocks(tokens) => *tokens,
                };
                Some(Growth { dimension, tokens })
            });
        let dtype = match (tensor.dtype, options.kv) {
            (StateDtype::Kv, Kv::F16) => StateDtype::F16,
            (StateDtype::Kv, Kv::F32) => StateDtype::F32,
            (dtype, _) => dtype,
        };
        let bytes = shape
            .iter()
            .try_fold(dtype.bytes(), |n, &d| n.checked_mul(d));
        let end = bytes
            .and_then(|b| self.bytes.checked_add(b))
            .filter(|&n| n < isize::MAX as usize - ALIGNMENT);
        let (Some(bytes), Some(end)) = (bytes, end) else {
            return Err(Error::invalid(
                format!("tensor {}", tensor.name),
                format!("shape {shape:?} is larger than any memory; choose a smaller context"),
            ));
        };
        let offset = self.bytes;
        self.tensors.push(StateTensorPlan {
            layer,
            name: tensor.name.into(),
            kind: tensor.kind,
            dtype,
            shape,
            offset,
            bytes,
            range: tensor.range,
            growth,
            rotary: tensor.rotary.clone(),
        });
        self.bytes = end.next_multiple_of(ALIGNMENT);
        Ok(())
    }

    /// The plan of the session's own state tensors before the logits; their offsets are those in the complete plan.
    #[doc(hidden)]
    pub fn own_tensors(&self) -> Self {
        let tensors = self.tensors[..LOGITS].to_vec();
        let end = tensors
            .last()
            .map_or(0, |tensor| tensor.offset + tensor.bytes);
        StatePlan {
            tensors,
            bytes: end.next_multiple_of(ALIGNMENT),
        }
    }
}
