//! One token of the recurrence as an op of the decode kernel: arguments of `recur_step.cu`.

use bytemuck::Zeroable;

use super::{DecayKind, Plan, SOURCE, Writing};
use crate::cuda::{
    Call, Grid, Launches, Node, RecurInput, RecurInputs, RecurStep, Recurrence, STEP_INPUTS,
    StepInput, StepOperand,
};

/// Columns of a state that a thread block may take.
const COLUMNS: [usize; 3] = [16, 32, 64];
/// Most numbers of the state and the inputs in a thread's registers.
const MOST_HELD: usize = 64;
/// Most bytes of shared memory for sums.
const MOST_SHARED: usize = 32 << 10;

/// Appends the step of a recurrence with this many states and SMs; returns whether the step is possible.
pub(super) fn push(
    plan: &Plan,
    states: usize,
    inputs: RecurInputs,
    sms: usize,
    launches: &mut Launches,
) -> bool {
    let rows = plan.decay_kind == DecayKind::Rows;
    let decay_width = if rows { plan.dk } else { 1 };
    let gates = RecurInput {
        rows: inputs.gates,
        sharing: 1,
        part: 0,
    };
    let mut given = [(RecurInput::zeroed(), 0); STEP_INPUTS];
    for (operand, input, width) in [
        (StepOperand::Q, inputs.q, plan.dk),
        (StepOperand::K, inputs.k, plan.dk),
        (StepOperand::V, inputs.v, plan.dv),
        (StepOperand::Decays, inputs.decay, decay_width),
        (StepOperand::Betas, inputs.beta, 1),
        (StepOperand::Removal, inputs.removal, plan.dk),
        (StepOperand::Rate, inputs.rate, plan.dk),
        (StepOperand::WriteGates, inputs.write_gate, 1),
        (StepOperand::Reads, inputs.read_gate, 1),
        (StepOperand::Gates, gates, plan.dv),
    ] {
        given[operand as usize] = (input, width);
    }
    let threads = launches.prologue_threads();
    let columns = columns_of_block(plan, states, sms, threads);
    // The sums of each warp and over all warps, the values, and a head's scalars: three, and one for each query.
    let floats = sums(plan) * columns * (threads / 32 + 1) + columns + 3 + plan.queries;
    let shared = floats * size_of::<f32>();
    // Each query needs a warp to write its outputs.
    if shared > MOST_SHARED || plan.queries > threads / 32 {
        return false;
    }
    let blocks = states * plan.dv.div_ceil(columns);
    let step = RecurStep {
        input: given.map(|(input, width)| step_input(input, width)),
        out: inputs.out.first,
        gains: inputs.gains,
        constants: inputs.constants,
        states: inputs.states,
        scale: inputs.scale,
        constant_shares: shares(inputs.constant_sharing),
        unit: inputs.unit,
        pad: 0,
    };
    let recurrence = Recurrence {
        step,
        inputs: given.map(|(input, _)| (input.rows.width > 0).then_some(input.rows)),
        output: inputs.out,
        blocks,
        can_normalize: plan.can_normalize(1),
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
        parameters: Vec::new(),
    };
    let queued = launches.push_node(call, Node::RecurStep(Box::new(recurrence)));
    queued.block_local = true;
    true
}

fn step_input(input: RecurInput, width: usize) -> StepInput {
    StepInput {
        from: 0,
        plain: input.rows.first,
        width: width as i32,
        shares: shares(input.sharing),
    }
}

/// Fixed-point reciprocal of the number of heads that share columns: columns = head * factor / 65536.
fn shares(sharing: i32) -> u32 {
    (1u32 << 16).div_ceil(sharing.max(1) as u32)
}

/// The fewest columns per thread block with which the thread blocks of all states run at once, or fewer if a thread cannot hold
/// its share.
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

/// Sums over the rows of a state for each column, as counted for a thread by `RecurrenceStep`.
fn sums(plan: &Plan) -> usize {
    let queries = plan.queries;
    match plan.writing {
        Writing::Add => queries + queries,
        Writing::Erase => 1 + queries + queries,
        Writing::Delta => 1 + queries + queries + 1 + queries,
        Writing::Replace => 1 + queries + queries + queries,
    }
}
