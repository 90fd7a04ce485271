//! Where every slot of a session lies in its one buffer. Pure arithmetic: `inspect` prints it from a file's header.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// How a slot is used; for reports and for code that walks slots of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StateKind {
    /// A recurrent matrix.
    Matrix,
    /// The last inputs of a convolution, oldest first.
    Shift,
    /// A circular segment: position `p` lies in row `p % rows`.
    Ring,
    /// A capped set of retained entries.
    Set,
    /// Counters and small values.
    Counter,
}

/// The type of a slot's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StateDtype {
    /// 32-bit float.
    F32,
    /// 32-bit unsigned integer.
    U32,
    /// 64-bit unsigned integer.
    U64,
    /// A cached key or value: what [`StateOptions::kv`] says.
    Kv,
    /// 16-bit float: a cached key or value in a plan.
    F16,
}

impl StateDtype {
    pub(crate) fn bytes(self) -> usize {
        match self {
            StateDtype::F16 => 2,
            StateDtype::F32 | StateDtype::U32 | StateDtype::Kv => 4,
            StateDtype::U64 => 8,
        }
    }
}

/// What the whole numbers of a slot may be. A state that comes from outside is checked against it before anything uses it
/// as an index or a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StateRange {
    /// Anything: no index or count is made of them.
    #[default]
    Any,
    /// At most so many.
    UpTo(u64),
    /// At most the number of tokens that were read.
    UpToPosition,
}

/// Most tokens that a session is believed to have read: a thousand years of them.
const MOST_TOKENS: u64 = 1 << 48;

/// A dimension of a slot: known from the model, or chosen when the session is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// Known from the model.
    Fixed(usize),
    /// The session's context, in tokens.
    Context,
    /// Blocks of so many tokens that the session's context touches.
    ContextBlocks(usize),
}

/// A slot that a mixer asks for.
#[derive(Debug, Clone)]
pub struct StateTensor {
    /// Name within the block.
    pub name: &'static str,
    /// Shape, outermost dimension first.
    pub shape: Vec<Size>,
    /// Type of the values.
    pub dtype: StateDtype,
    /// How it is used.
    pub kind: StateKind,
    /// What its numbers may be, if they are whole.
    pub range: StateRange,
}

impl StateTensor {
    /// A slot whose dimensions all follow from the model.
    pub fn new(name: &'static str, kind: StateKind, dtype: StateDtype, shape: &[usize]) -> Self {
        StateTensor {
            name,
            shape: shape.iter().map(|&n| Size::Fixed(n)).collect(),
            dtype,
            kind,
            range: StateRange::Any,
        }
    }

    /// The slot with a range of its whole numbers.
    pub fn within(self, range: StateRange) -> Self {
        StateTensor { range, ..self }
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

/// What a user chooses about a session's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StateOptions {
    /// Tokens that full attention can look back on.
    pub context: usize,
    /// Type of cached keys and values.
    pub kv: Kv,
    /// How many of the last tokens are remembered, for penalties and for reading them again after a rewind.
    pub log: usize,
}

impl Default for StateOptions {
    fn default() -> Self {
        StateOptions {
            context: 4096,
            kv: Kv::F16,
            log: 4096,
        }
    }
}

/// One slot with its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateTensorPlan {
    /// The block it belongs to; none for the session's own slots.
    pub block: Option<usize>,
    /// Name within the block or the session.
    pub name: String,
    /// How it is used.
    pub kind: StateKind,
    /// Type of the values.
    pub dtype: StateDtype,
    /// Shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// First byte in the arena; a multiple of 64.
    pub offset: usize,
    /// Bytes used.
    pub bytes: usize,
    /// What its numbers may be, if they are whole. It follows from the model, so no file says it.
    #[serde(skip)]
    pub range: StateRange,
}

impl StateTensorPlan {
    /// Whether `other`, from a file, is the same slot in the same place.
    pub(crate) fn lies_like(&self, other: &Self) -> bool {
        let other = StateTensorPlan {
            range: self.range,
            ..other.clone()
        };
        *self == other
    }
}

/// Every slot of a session, in the order in which they lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatePlan {
    /// The slots.
    pub slots: Vec<StateTensorPlan>,
    /// Size of the arena in bytes.
    pub bytes: usize,
}

/// The session's own slots come first: position, sampler, token log, logits.
pub(crate) const HEADER: usize = 0;
pub(crate) const SAMPLER: usize = 1;
pub(crate) const LOG: usize = 2;
pub(crate) const LOGITS: usize = 3;

const ALIGNMENT: usize = 64;

impl StatePlan {
    /// Lays out the state of a session on a model with so many token ids and the state tensors of each layer. Fails if it
    /// would not fit in memory's address range.
    pub(crate) fn new(
        vocab: usize,
        layers: impl IntoIterator<Item = Vec<StateTensor>>,
        options: &StateOptions,
    ) -> Result<Self> {
        if options.context == 0 || options.log == 0 {
            return Err(Error::invalid(
                "context and log",
                "must be at least one token",
            ));
        }
        let mut plan = StatePlan {
            slots: Vec::new(),
            bytes: 0,
        };
        let counter = |name, dtype, n| StateTensor::new(name, StateKind::Counter, dtype, &[n]);
        let position = counter("position", StateDtype::U64, 1);
        let position = position.within(StateRange::UpTo(MOST_TOKENS));
        plan.add(None, &position, options)?;
        plan.add(None, &counter("sampler", StateDtype::U64, 2), options)?;
        plan.add(
            None,
            &StateTensor::new("log", StateKind::Ring, StateDtype::U32, &[options.log])
                .within(StateRange::UpTo(vocab as u64 - 1)),
            options,
        )?;
        plan.add(None, &counter("logits", StateDtype::F32, vocab), options)?;
        for (i, tensors) in layers.into_iter().enumerate() {
            for slot in tensors {
                plan.add(Some(i), &slot, options)?;
            }
        }
        Ok(plan)
    }

    fn add(
        &mut self,
        block: Option<usize>,
        slot: &StateTensor,
        options: &StateOptions,
    ) -> Result<()> {
        let shape: Vec<usize> = slot
            .shape
            .iter()
            .map(|size| match size {
                Size::Fixed(n) => *n,
                Size::Context => options.context,
                Size::ContextBlocks(tokens) => options.context.div_ceil(*tokens),
            })
            .collect();
        let dtype = match (slot.dtype, options.kv) {
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
                format!("slot {}", slot.name),
                format!("shape {shape:?} is larger than any memory; choose a smaller context"),
            ));
        };
        let offset = self.bytes;
        self.slots.push(StateTensorPlan {
            block,
            name: slot.name.into(),
            kind: slot.kind,
            dtype,
            shape,
            offset,
            bytes,
            range: slot.range,
        });
        self.bytes = end.next_multiple_of(ALIGNMENT);
        Ok(())
    }

    /// The session's own slots before the logits, which lie where they lie in the whole plan.
    pub(crate) fn own_slots(&self) -> Self {
        let slots = self.slots[..LOGITS].to_vec();
        let end = slots.last().map_or(0, |slot| slot.offset + slot.bytes);
        StatePlan {
            slots,
            bytes: end.next_multiple_of(ALIGNMENT),
        }
    }

    /// Bytes of the slots of one block, or of the session's own for `None`.
    pub fn block_bytes(&self, block: Option<usize>) -> usize {
        self.slots
            .iter()
            .filter(|slot| slot.block == block)
            .map(|slot| slot.bytes)
            .sum()
    }
}
