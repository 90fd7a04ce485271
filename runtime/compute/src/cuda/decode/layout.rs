//! The layout of a block's shared memory in the decode kernel.

use waterline_quant::FORMATS;

use crate::cuda::decode::control;
use crate::cuda::decode::pipeline::{Segment, Tile};
use crate::cuda::decode::record::{OpRecord, PRODUCER_WARPS};
use crate::cuda::decode::tiling::{STEP_UNITS, SUMS_PITCH, Tiling};
use crate::cuda::driver::tuning::Tuning;
use crate::cuda::schedule::DECODE_THREADS;
use crate::cuda::schedule::Gemv;
use crate::cuda::schedule::Queued;

/// Alignment of the weight pipeline's stages. Bulk copies to addresses that are not multiples of 32 bytes are slower: a token takes 7 %
/// longer.
const STAGE_ALIGNMENT: usize = 128;
/// Bytes of the two barriers of a stage.
const STAGE_BARRIERS: usize = 2 * size_of::<u64>();
/// Bytes of the barrier `finished` of pipeline.cu, with padding.
const END_BARRIER: usize = 2 * size_of::<u64>();
/// Upper bound of the shared memory that the ops of a model declare statically, in bytes.
const STATIC_SHARED: usize = 3 << 10;
/// Bytes of `CtaState` in cta.cu, for one slot.
const CTA_STATE: usize = 128;
/// Maximum bytes of a list of segments in shared memory.
const LIST: usize = 24 << 10;

/// The shared memory that a program needs.
pub(crate) struct Needs {
    tiling: Tiling,
    /// Bytes of the list of segments.
    list: usize,
    parameters: usize,
    /// Number of slots, each of which has a workspace of `slot` bytes in a GEMV: the input, then partial sums from `sums_at` on.
    slots: usize,
    slot: usize,
    sums_at: usize,
    /// The ops' workspace.
    work: usize,
    /// Bytes of a stage of the weight pipeline.
    stage: usize,
}

impl Needs {
    /// Computes the needs of ops on `slots` tokens with `sums` floats of partial sums of each, and a `list` of this many bytes.
    pub fn new<'a>(
        calls: impl Iterator<Item = &'a Queued> + Clone,
        list: usize,
        sums: usize,
        slots: usize,
        tiling: Tiling,
    ) -> Self {
        let sets = |queued: &Queued| match queued.recurrence() {
            Some(_) => slots,
            None => 1,
        };
        let parameters = calls.clone();
        let parameters = parameters.map(|queued| sets(queued) * queued.call.packed_bytes());
        let products = || calls.clone().filter_map(|queued| queued.gemv());
        let weights = || products().flat_map(|gemv| &gemv.weights);
        let sums_at = products().map(Gemv::input_bytes).max().unwrap_or(0);
        let sums_at = sums_at.next_multiple_of(16);
        let work = calls.clone().map(|queued| queued.call.shared).max();
        let slot = (sums_at + sums * size_of::<f32>()).next_multiple_of(128);
        let work = work.unwrap_or(0).max(slots * slot);
        let stage = weights()
            .map(|factor| Tile::new(factor, tiling).bytes)
            .max();
        Needs {
            tiling,
            list,
            parameters: (size_of::<OpRecord>() + parameters.max().unwrap_or(0))
                .next_multiple_of(16),
            work: work.next_multiple_of(128),
            slots,
            slot,
            sums_at,
            stage: stage
                .unwrap_or(0)
                .next_multiple_of(STAGE_ALIGNMENT)
                .max(STAGE_ALIGNMENT),
        }
    }

    /// Returns the layout with as many stages as fit into `shared` bytes; the list of segments moves to device memory if it does not fit.
    /// If not even `stages` stages fit, returns the bytes that they need.
    pub fn layout(self, stages: usize, shared: usize) -> Result<Layout, usize> {
        let mut layout = Layout {
            list: if self.list <= LIST { self.list } else { 0 },
            needs: self,
            stages: 0,
        };
        let count = |layout: &Layout| {
            let rest = shared.saturating_sub(layout.fixed());
            rest / (layout.needs.stage + STAGE_BARRIERS) / PRODUCER_WARPS * PRODUCER_WARPS
        };
        if count(&layout) < stages {
            layout.list = 0;
        }
        layout.stages = count(&layout);
        let needs = &layout.needs;
        // Each thread copies at most 16 bytes of a record.
        if layout.stages < stages || needs.parameters / 16 >= DECODE_THREADS {
            return Err(layout.fixed() + stages * (needs.stage + STAGE_BARRIERS));
        }
        Ok(layout)
    }
}

/// The layout, fixed before the kernel is compiled.
pub(crate) struct Layout {
    needs: Needs,
    /// Bytes of the list of segments in shared memory; 0 if it lies in device memory.
    list: usize,
    stages: usize,
}

impl Layout {
    /// Returns the bytes of everything but the stages and their barriers.
    fn fixed(&self) -> usize {
        STATIC_SHARED
            + self.state()
            + 2 * self.needs.parameters
            + END_BARRIER
            + self.list
            + self.needs.work
            + STAGE_ALIGNMENT
    }

    /// Offset of the first stage.
    fn stages_at(&self) -> usize {
        let barriers = self.stages * STAGE_BARRIERS + END_BARRIER;
        let before = self.state() + 2 * self.needs.parameters + barriers;
        (before + self.list + self.needs.work).next_multiple_of(STAGE_ALIGNMENT)
    }

    /// Bytes of `CtaState`, which has one more field with several slots.
    fn state(&self) -> usize {
        CTA_STATE + if self.needs.slots > 1 { 16 } else { 0 }
    }

    /// Bytes of dynamic shared memory.
    pub fn shared(&self) -> usize {
        self.stages_at() + self.stages * self.needs.stage
    }

    /// Returns the number of stages of the weight pipeline, and the bytes per stage.
    pub fn stages(&self) -> [usize; 2] {
        [self.stages, self.needs.stage]
    }

    /// Bytes of an op's record with its parameters.
    pub fn parameters(&self) -> usize {
        self.needs.parameters
    }

    /// Returns the sizes as constants of the kernel's source.
    pub fn constants(&self, mailbox_floats: usize, tuning: Tuning) -> String {
        let needs = &self.needs;
        let sixteen_row_formats = (0..FORMATS.len())
            .filter(|&format| needs.tiling.rows(format) == 16)
            .fold(0u64, |set, format| set | 1 << format);
        let in_flight = tuning.tiles_in_flight(PRODUCER_WARPS, self.stages, needs.stage);
        let constants = [
            ("consumer_threads", DECODE_THREADS),
            ("producer_warps", PRODUCER_WARPS),
            ("step_units", STEP_UNITS),
            ("sums_pitch", SUMS_PITCH),
            ("record_bytes", needs.parameters),
            ("segments_bytes", self.list),
            ("stages_at", self.stages_at()),
            ("sums_at", needs.sums_at),
            ("cta_state_bytes", self.state()),
            ("segment_bytes", size_of::<Segment>()),
            ("barrier_bytes", self.stages * STAGE_BARRIERS + END_BARRIER),
            ("stage_bytes", needs.stage),
            ("stage_count", self.stages),
            ("mailbox_floats", mailbox_floats),
            ("first_poll_ns", tuning.first_poll_ns),
            ("poll_ns", tuning.poll_ns),
            ("tiles_in_flight", in_flight),
            ("deadline", control::deadline()),
            ("most_row_groups", needs.tiling.row_groups),
        ];
        let sixteen_row_formats =
            format!("constexpr unsigned long long sixteen_row_formats = {sixteen_row_formats};\n");
        let line = |(name, value)| format!("constexpr int {name} = {value};\n");
        // See cta.cu.
        let racecheck = match std::env::var_os("WATERLINE_RACECHECK") {
            Some(_) => "#define WATERLINE_RACECHECK 1\n",
            None => "",
        };
        let fault = control::fault().map(|op| format!("#define WATERLINE_FAULT {op}u\n"));
        let slots = match needs.slots {
            1 => String::new(),
            slots => {
                let sizes = [("most_slots", slots), ("slot_bytes", needs.slot)];
                "#define WATERLINE_SLOTS 1\n".to_owned() + &sizes.map(line).concat()
            }
        };
        let constants = sixteen_row_formats + &constants.map(line).concat();
        racecheck.to_owned() + &fault.unwrap_or_default() + &slots + &constants
    }
}
