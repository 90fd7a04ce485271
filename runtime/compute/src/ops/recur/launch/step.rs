//! A token of the recurrence as an op of the decode kernel: arguments of `recur_step.cu`.

use bytemuck::{Pod, Zeroable};

use super::{DecayKind, DeviceInputs, Input, Plan, SOURCE, Writing};
use crate::cuda::{Address, Call, Grid, Launches, Parameter, Recurrence};

/// `StepInput` in recur_step.cu. Where it is passed is filled in when the program is laid out.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct StepInput {
    from: Address,
    plain: Address,
    width: i32,
    shares: u32,
}

/// `RecurStep` in recur_step.cu.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct RecurStep {
    input: [StepInput; INPUTS],
    out: Address,
    gains: Address,
    constants: Address,
    states: Address,
    scale: f32,
    constant_shares: u32,
    unit: i32,
    pad: i32,
}

/// DeviceInputs, and those of them without which there are no sums: all but the gates.
const INPUTS: usize = 10;
const OF_SUMS: usize = INPUTS - 1;
/// Columns of a state that a block may take.
const COLUMNS: [usize; 3] = [16, 32, 64];
/// Most numbers of the state and the inputs in a thread's registers.
const MOST_HELD: usize = 64;
/// Most bytes of shared memory for sums.
const MOST_SHARED: usize = 32 << 10;

/// Appends the step of a recurrence with this many states and SMs; returns whether it can be one.
pub(super) fn push(
    plan: &Plan,
    states: usize,
    inputs: DeviceInputs,
    sms: usize,
    launches: &mut Launches,
) -> bool {
    let rows = plan.decay_kind == DecayKind::Rows;
    let decay_width = if rows { plan.dk } else { 1 };
    let gates = Input {
        rows: inputs.gates,
        sharing: 1,
        part: 0,
    };
    // In the order of the numbers in recur_step.cu.
    let given: [_; INPUTS] = [
        (inputs.q, plan.dk),
        (inputs.k, plan.dk),
        (inputs.v, plan.dv),
        (inputs.decay, decay_width),
        (inputs.beta, 1),
        (inputs.removal, plan.dk),
        (inputs.rate, plan.dk),
        (inputs.write_gate, 1),
        (inputs.read_gate, 1),
        (gates, plan.dv),
    ];
    let threads = launches.prologue_threads();
    let columns = columns_of_block(plan, states, sms, threads);
    // The warps' sums and those of all warps, the values, and a head's weights: three and one for each query.
    let floats = sums(plan) * columns * (threads / 32 + 1) + columns + 3 + plan.queries;
    let shared = floats * size_of::<f32>();
    // Each query's outputs have a warp to write them.
    if shared > MOST_SHARED || plan.queries > threads / 32 {
        return false;
    }
    let blocks = states * plan.dv.div_ceil(columns);
    let recurrence = Recurrence {
        inputs: given
            .map(|(input, _)| (input.rows.width > 0).then_some(input.rows))
            .to_vec(),
        of_sums: OF_SUMS,
        input_bytes: size_of::<StepInput>(),
        output: inputs.out,
        blocks,
    };
    let step = RecurStep {
        input: given.map(|(input, width)| StepInput::new(input, width)),
        out: inputs.out.first,
        gains: inputs.gains,
        constants: inputs.constants,
        states: inputs.states,
        scale: inputs.scale,
        constant_shares: shares(inputs.constant_sharing),
        unit: inputs.unit,
        pad: 0,
    };
    let call = Call {
        source: SOURCE,
        kernel: format!(
            "recur_step<mailboxes, {}, {}, {columns}, {}, {}, {}, {}, {}>",
            plan.dk,
            plan.dv,
            plan.queries,
            plan.decay_kind as i32,
            plan.complement,
            plan.writing as i32,
            plan.finish
        ),
        grid: Grid::Blocks(blocks),
        threads,
        shared,
        parameters: vec![Parameter::value("RecurStep", step)],
    };
    launches.push_recurrence(call, recurrence);
    true
}

impl StepInput {
    fn new(input: Input, width: usize) -> Self {
        StepInput {
            from: 0,
            plain: input.rows.first,
            width: width as i32,
            shares: shares(input.sharing),
        }
    }
}

/// Fixed-point reciprocal of the number of heads that share columns: columns = head * factor / 65536.
fn shares(sharing: i32) -> u32 {
    (1u32 << 16).div_ceil(sharing.max(1) as u32)
}

/// The fewest columns of a block with which all states' blocks run at once, if a thread can hold its part of them.
fn columns_of_block(plan: &Plan, states: usize, sms: usize, threads: usize) -> usize {
    let fits = |columns: &usize| states * plan.dv.div_ceil(*columns) <= sms;
    let wanted = COLUMNS.into_iter().find(fits).unwrap_or(COLUMNS[2]);
    let own = if plan.dv.is_multiple_of(2) { 2 } else { 1 };
    let held = |columns: &usize| {
        let rows = plan.dk.div_ceil(threads / (columns / own));
        let vectors =
            1 + usize::from(plan.decay_kind == DecayKind::Rows) + plan.writing.removal_vectors();
        rows * (own + plan.queries + vectors)
    };
    let holds =
        |columns: &usize| *columns <= wanted && columns / own <= 32 && held(columns) <= MOST_HELD;
    COLUMNS.into_iter().rev().find(holds).unwrap_or(COLUMNS[0])
}

/// Sums over a state's rows of each column, as `RecurrenceStep` counts them for a thread.
fn sums(plan: &Plan) -> usize {
    let queries = plan.queries;
    match plan.writing {
        Writing::Add => queries + queries,
        Writing::Erase => 1 + queries + queries,
        Writing::Delta => 1 + queries + queries + 1 + queries,
        Writing::Replace => 1 + queries + queries + queries,
    }
}
