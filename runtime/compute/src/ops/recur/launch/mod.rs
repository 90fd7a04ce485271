//! Launches of the kernels in `recur.cu`.

mod matrix_form;
mod step;

use bytemuck::Zeroable;

pub(in crate::ops) use matrix_form::{Lists, MatrixForm};

use super::{Decay, Key, Recur, Write};
use crate::abi::{DeviceType, device_enum};
use crate::cuda::{
    Call, Grid, Launches, Node, Parameter, RecurInput, RecurInputs, RecurStep, Source, StepOperand,
};
use crate::error::Result;
use crate::operands::View;
use crate::ops::DeviceOp;

/// Kernel sources of the recurrence.
pub(in crate::ops) const SOURCE: &[Source; 8] = &[
    Source::new(
        "ops/recur/recur.cu",
        &[DecayKind::define, Writing::define, RecurInputs::define],
    ),
    Source::new(
        "ops/recur/recur_step.cu",
        &[StepOperand::define, RecurStep::define],
    ),
    Source::new("ops/recur/recur_block.cu", &[]),
    Source::new("ops/recur/recur_levels.cu", &[]),
    Source::new("ops/recur/recur_columns.cu", &[]),
    Source::new("ops/recur/recur_chunk.cu", &[]),
    Source::new("ops/recur/recur_rows.cu", &[]),
    Source::new("ops/recur/recur_states.cu", &[]),
];

device_enum! {
    /// How a state decays: not at all; by exp of a constant, of a value per head, of their product, or of a value per row; or by
    /// one minus the keys or the values.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(in crate::ops) enum DecayKind("DECAY_") {
        None,
        Fixed,
        Head,
        Step,
        Rows,
        ByKey,
        ByValue,
    }
}

device_enum! {
    /// The kind of write.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(in crate::ops) enum Writing("WRITE_") {
        Add,
        Delta,
        Replace,
        Erase,
    }
}

impl Writing {
    /// Number of vectors of key width besides the key: the removal key, and the rate of each of its channels.
    pub(crate) fn removal_vectors(self) -> usize {
        match self {
            Writing::Add | Writing::Delta => 0,
            Writing::Erase => 1,
            Writing::Replace => 2,
        }
    }
}

impl RecurInputs {
    /// The template argument `finish`.
    fn finish(&self) -> i32 {
        let function = if self.gates.width > 0 {
            1 + self.function
        } else {
            0
        };
        2 * function + i32::from(self.gains != 0)
    }

    /// Whether rows begin at multiples of 16 bytes.
    fn aligned(&self, decay_kind: DecayKind) -> bool {
        let decay = (decay_kind == DecayKind::Rows).then_some(self.decay);
        let rows = [self.q, self.k, self.v, self.removal, self.rate];
        (rows.iter().chain(&decay)).all(|input| input.rows.is_aligned() && input.part % 4 == 0)
    }
}

/// The template arguments of `Recurrence`.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Plan {
    pub dk: usize,
    pub dv: usize,
    /// Queries per state.
    pub queries: usize,
    pub decay_kind: DecayKind,
    /// Whether keys are one minus the decay.
    pub complement: bool,
    pub writing: Writing,
    /// The output's finish, encoded as in recur.cu.
    pub finish: i32,
    /// Whether every input begins at a multiple of four floats.
    pub aligned: bool,
    /// Lanes that share the rows of a column.
    lanes: usize,
    /// Columns per thread.
    columns: usize,
    /// Warps per thread block.
    warps: usize,
    /// Tokens in shared memory at once; double-buffered if there is more than one.
    batch: usize,
    /// Number of bf16 terms per operand of the matrix form. Two terms are within 4e-6 of a number; mixture-of-experts models use
    /// three, an exact f32, because 4e-6 is enough to change routing.
    pub parts: usize,
}

/// Most tokens of a batch, and most bytes of shared memory for them.
const BATCH: usize = 8;
const SHARED: usize = 64 << 10;

/// Most warps of a thread block: one for each scheduler of an SM, so that as few thread blocks as possible load the same inputs.
const WARPS: usize = 4;
/// Most warps in a persistent program, where each SM runs one thread block at a time.
const PERSISTENT_WARPS: usize = 16;

/// How a token updates a state.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Update {
    pub decay_kind: DecayKind,
    /// Whether keys are one minus the decay.
    pub complement: bool,
    pub writing: Writing,
}

/// The chunk, the device and the program that a kernel is planned for.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Place {
    /// Tokens of the largest chunk.
    pub tokens: usize,
    pub sms: usize,
    /// Whether the op runs in the decode kernel.
    pub persistent: bool,
    /// Whether the model routes tokens to experts or partitions.
    pub has_routing: bool,
}

impl Plan {
    /// Plans the kernel for `states` states that are computed at once.
    pub fn new(
        [dk, dv, queries]: [usize; 3],
        states: usize,
        update: Update,
        inputs: &RecurInputs,
        place: Place,
    ) -> Self {
        let Place {
            tokens,
            sms,
            persistent,
            has_routing,
        } = place;
        // A chunk is bound by the instructions of one token after another, so more lanes share a column. The state of a step is
        // in the registers of all SMs' threads.
        let lanes = match (dk, tokens) {
            (0..=32, _) => 4,
            (129..=256, 1) if persistent => 16,
            (257..=512, 1) if persistent => 32,
            (33..=256, 1) | (33..=64, _) => 8,
            (257..=512, 1) | (65..=128, _) => 16,
            _ => 32,
        };
        let columns = if dv.is_multiple_of(2) { 2 } else { 1 };
        let blocks = |warps: usize| states * dv.div_ceil(32 / lanes * columns * warps);
        // A single token is bound by the loads of the state, so all SMs take part.
        let least = if tokens == 1 { sms } else { 1 };
        let most = if persistent { PERSISTENT_WARPS } else { WARPS };
        let mut warps = (1..=most).filter(|&n| {
            n.is_power_of_two()
                && 32 / lanes * columns * n <= dv.next_multiple_of(32 / lanes * columns)
        });
        let warps = if persistent {
            // The smallest thread blocks that run in one wave.
            let fits = |n: &usize| blocks(*n) <= sms;
            warps.clone().find(fits).or(warps.next_back())
        } else {
            warps.rfind(|&n| blocks(n) >= least)
        };
        let warps = warps.unwrap_or(1);
        let four = |n: usize| n.is_multiple_of(4);
        let mut plan = Plan {
            dk,
            dv,
            queries,
            decay_kind: update.decay_kind,
            complement: update.complement,
            writing: update.writing,
            finish: inputs.finish(),
            aligned: four(dk) && four(dv) && inputs.aligned(update.decay_kind),
            lanes,
            columns,
            warps,
            batch: 1,
            parts: if has_routing { 3 } else { 2 },
        };
        if tokens > 1 {
            let fits = |batch: &usize| {
                Plan {
                    batch: *batch,
                    ..plan
                }
                .shared()
                    <= SHARED
            };
            plan.batch = (2..=BATCH).rev().find(fits).unwrap_or(2);
        }
        plan
    }

    /// Thread blocks per state.
    pub fn groups(&self) -> usize {
        self.dv.div_ceil(self.block_columns())
    }

    fn block_columns(&self) -> usize {
        32 / self.lanes * self.columns * self.warps
    }

    /// Threads per thread block.
    pub fn threads(&self) -> usize {
        32 * self.warps
    }

    /// Bytes of shared memory for the tokens' inputs.
    pub fn shared(&self) -> usize {
        let depth = self.dk.next_multiple_of(4 * self.lanes);
        let rows = self.queries
            + usize::from(!self.complement)
            + usize::from(self.decay_kind == DecayKind::Rows)
            + self.writing.removal_vectors();
        let floats = rows * depth + self.block_columns() + 3 + self.queries;
        let buffers = if self.batch == 1 { 1 } else { 2 };
        buffers * self.batch * floats.next_multiple_of(4) * size_of::<f32>()
    }

    /// The template arguments.
    pub fn arguments(&self) -> String {
        format!(
            "{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}",
            self.dk,
            self.dv,
            self.lanes,
            self.columns,
            self.warps,
            self.queries,
            self.decay_kind as i32,
            self.complement,
            self.writing as i32,
            self.finish,
            self.batch,
            self.aligned
        )
    }

    /// Whether the kernel for so many tokens can scale queries and keys to unit length.
    fn can_normalize(&self, tokens: usize) -> bool {
        self.writing == Writing::Delta && tokens == 1
    }

    /// Runs the recurrence over the chunk, in matrix form where that is faster.
    pub fn launch(
        &self,
        states: usize,
        inputs: RecurInputs,
        launches: &mut Launches,
    ) -> Result<()> {
        let room = [launches.limits.sms, launches.limits.shared_memory];
        let (tokens, cores) = (launches.tokens, launches.limits.tensor_cores);
        if let Some(form) = MatrixForm::new(*self, states, tokens, cores, room) {
            return form.launch(states, inputs, None, launches);
        }
        let call = Call {
            source: SOURCE,
            kernel: format!("recur<{}>", self.arguments()),
            grid: Grid::Blocks(states * self.groups()),
            threads: self.threads(),
            shared: self.shared(),
            parameters: vec![Parameter::tokens()],
        };
        let node = Node::Recur {
            inputs: Box::new(inputs),
            can_normalize: self.can_normalize(tokens),
        };
        let queued = launches.push_node(call, node);
        queued.block_local = true;
        Ok(())
    }
}

impl DeviceOp for Recur {
    fn fills_device(&self) -> bool {
        true
    }

    fn launch(&self, launches: &mut Launches) -> Result<()> {
        let inputs = self.device_inputs(1, launches)?;
        let plan = self.plan(self.states, &inputs, launches);
        let is_step = launches.tokens == 1
            && launches.persistent
            && step::push(
                &plan,
                self.states,
                inputs,
                launches.share_of_sms(),
                launches,
            );
        if !is_step {
            plan.launch(self.states, inputs, launches)?;
        }
        Ok(())
    }
}

impl Recur {
    /// The columns of the kernel's inputs, in views that have `parts` equal parts.
    pub(in crate::ops) fn device_inputs(
        &self,
        parts: usize,
        launches: &Launches,
    ) -> Result<RecurInputs> {
        let input = |view: &View, width: usize| {
            let columns = view.width / parts;
            RecurInput {
                rows: launches.rows(*view),
                sharing: (self.heads / (columns / width)) as i32,
                part: if parts == 1 { 0 } else { columns as i32 },
            }
        };
        let mut inputs = RecurInputs {
            q: input(&self.q, self.dk),
            v: input(&self.v, self.dv),
            out: launches.rows(self.out),
            states: launches.state_address(self.state),
            scale: self.scale,
            constant_sharing: 1,
            ..RecurInputs::zeroed()
        };
        if let Key::View(view) = &self.k {
            inputs.k = input(view, self.dk);
        }
        match &self.decay {
            Decay::None => (),
            Decay::Head(view) => inputs.decay = input(view, 1),
            Decay::Key(view) => inputs.decay = input(view, self.dk),
            Decay::Step(view, _) => inputs.decay = input(view, 1),
            Decay::Fixed(_) => (),
        }
        if let Decay::Fixed(constants) | Decay::Step(_, constants) = &self.decay {
            inputs.constants = launches.vector_address(constants)?;
            inputs.constant_sharing = (self.heads / constants.len()) as i32;
        }
        match &self.write {
            Write::Add => (),
            Write::Delta(beta) => inputs.beta = input(beta, 1),
            Write::Erase { key } => inputs.removal = input(key, self.dk),
            Write::Replace { key, rate } => {
                inputs.removal = input(key, self.dk);
                inputs.rate = input(rate, self.dk);
            }
        }
        if let Some(gates) = &self.gates {
            inputs.write_gate = input(&gates.write, 1);
            if let Some(read) = &gates.read {
                inputs.read_gate = input(read, 1);
            }
        }
        if let Some(gains) = &self.finish.skip {
            inputs.gains = launches.vector_address(gains)?;
        }
        if let Some((gate, function)) = self.finish.gate {
            inputs.gates = launches.rows(gate);
            inputs.function = function as i32;
        }
        Ok(inputs)
    }

    /// Plans the kernel for `states` states that are computed at once.
    pub(in crate::ops) fn plan(
        &self,
        states: usize,
        inputs: &RecurInputs,
        launches: &Launches,
    ) -> Plan {
        let update = Update {
            decay_kind: match &self.decay {
                Decay::None => DecayKind::None,
                Decay::Fixed(_) => DecayKind::Fixed,
                Decay::Head(_) => DecayKind::Head,
                Decay::Step(..) => DecayKind::Step,
                Decay::Key(_) => DecayKind::Rows,
            },
            complement: matches!(self.k, Key::Complement),
            writing: match &self.write {
                Write::Add => Writing::Add,
                Write::Delta(_) => Writing::Delta,
                Write::Erase { .. } => Writing::Erase,
                Write::Replace { .. } => Writing::Replace,
            },
        };
        let place = Place {
            tokens: launches.tokens,
            sms: launches.share_of_sms(),
            persistent: launches.persistent,
            has_routing: launches.has_routing,
        };
        let sizes = [self.dk, self.dv, self.heads / self.states];
        Plan::new(sizes, states, update, inputs, place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(sizes: [usize; 3], states: usize, tokens: usize) -> Plan {
        let update = Update {
            decay_kind: DecayKind::Rows,
            complement: false,
            writing: Writing::Delta,
        };
        let place = Place {
            tokens,
            sms: 132,
            persistent: false,
            has_routing: false,
        };
        Plan::new(sizes, states, update, &RecurInputs::zeroed(), place)
    }

    #[test]
    fn a_step_takes_all_processors() {
        for (states, dk, dv) in [(6, 256, 512), (16, 128, 128), (4, 256, 512), (64, 128, 64)] {
            let plan = plan([dk, dv, 1], states, 1);
            assert!(states * plan.groups() >= 132, "{states} {dk} {dv}");
        }
    }

    #[test]
    fn every_column_has_a_thread_and_the_inputs_fit() {
        for dk in [1, 8, 12, 33, 100, 128, 256, 300, 512] {
            for dv in [1, 2, 7, 9, 40, 64, 129, 512] {
                for (queries, tokens) in [(1, 1), (1, 9), (4, 64)] {
                    let plan = plan([dk, dv, queries], 3, tokens);
                    assert!(plan.groups() * plan.block_columns() >= dv);
                    assert!((plan.groups() - 1) * plan.block_columns() < dv);
                    assert!(plan.shared() <= SHARED, "{dk} {dv} {queries} {tokens}");
                    assert_eq!(plan.batch == 1, tokens == 1);
                }
            }
        }
    }
}
