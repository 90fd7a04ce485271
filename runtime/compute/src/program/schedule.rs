//! The order in which ops may run, derived from their operands ([`crate::ops::Op::access`]) in one way for all devices. On the CPU, any
//! order that respects the dependencies gives the same bits; a GPU runs the ops of a level together.

use std::fmt;

use serde::Serialize;

use crate::cuda::KernelOpInfo;
use crate::operands::{Access, Hazard, Operand, RESIDUAL, View};
use crate::program::Program;
use crate::state::StatePlan;

/// The ops of a model, their dependencies, and their levels.
#[derive(Debug, Clone, Serialize)]
pub struct Schedule {
    /// The ops in the order of the model; the logits come last.
    #[doc(hidden)]
    pub ops: Vec<Scheduled>,
    /// The dependencies between ops, without those that follow from others.
    #[doc(hidden)]
    pub dependencies: Vec<Dependency>,
    /// Number of levels.
    #[doc(hidden)]
    pub levels: usize,
    /// How the GPU runs a step; `None` without a GPU.
    #[doc(hidden)]
    pub gpu: Option<String>,
}

/// An op in the schedule.
#[derive(Debug, Clone, Serialize)]
pub struct Scheduled {
    /// Name of the op.
    pub op: String,
    /// The op's layer; `None` for the embedding and the logits.
    pub layer: Option<usize>,
    /// Operands that the op reads.
    pub reads: Vec<String>,
    /// Operands that the op writes.
    pub writes: Vec<String>,
    /// One more than the highest level among the ops that this op waits for; 0 if it waits for no op.
    pub level: usize,
    /// Passes that could not merge work of the op with its neighbours in a decode kernel, each with the reason.
    pub not_fused: Vec<String>,
}

/// A dependency of one op on another.
#[derive(Debug, Clone, Serialize)]
pub struct Dependency {
    /// The earlier op: its index in [`Schedule::ops`].
    pub from: usize,
    /// The later op: its index in [`Schedule::ops`].
    pub to: usize,
    /// The operand that causes the dependency.
    pub tensor: String,
    /// Why the order matters.
    pub hazard: Hazard,
    /// How the decode kernel of a GPU enforces the dependency; `None` without a GPU, or where a step is a graph of kernels.
    pub link: Option<Link>,
}

/// How a kernel that runs a complete step enforces a dependency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Link {
    /// All thread blocks wait for each other.
    Barrier,
    /// Thread blocks poll the values that they need.
    Mailbox,
    /// One op of the kernel computes both ops: each thread block continues with the values that it computed.
    Fused,
}

impl Schedule {
    /// The schedule of a program whose state is laid out by `plan`.
    #[doc(hidden)]
    pub fn new(program: &Program, plan: &StatePlan) -> Self {
        let ops = program.ops.iter().enumerate();
        let ops = ops.map(|(index, op)| (op.name(), program.layer_of(index), op.access()));
        let logits = ("Logits", None, program.logits.access());
        let all: Vec<_> = ops.chain([logits]).collect();
        let accesses: Vec<_> = all.iter().map(|(_, _, access)| access).collect();
        let mut dependencies = Vec::new();
        let mut levels = vec![0; all.len()];
        predecessors(&accesses, |from, to, operand, hazard| {
            levels[to] = levels[to].max(levels[from] + 1);
            dependencies.push(Dependency {
                from,
                to,
                tensor: name(operand, plan),
                hazard,
                link: None,
            });
        });
        let names = |operands: &[Operand]| operands.iter().map(|&o| name(o, plan)).collect();
        let scheduled = all.iter().zip(&levels);
        Schedule {
            levels: levels.iter().max().map_or(0, |level| level + 1),
            ops: scheduled
                .map(|((op, layer, access), &level)| Scheduled {
                    op: (*op).into(),
                    layer: *layer,
                    reads: names(&access.reads),
                    writes: names(&access.writes),
                    level,
                    not_fused: Vec::new(),
                })
                .collect(),
            dependencies,
            gpu: None,
        }
    }

    /// Records how a step runs on the GPU.
    #[doc(hidden)]
    pub fn set_gpu(&mut self, gpu: String) {
        self.gpu = Some(gpu);
    }

    /// Records how the ops of a decode kernel enforce each dependency.
    #[doc(hidden)]
    pub fn link(&mut self, kernel_ops: &[KernelOpInfo]) {
        let of = |op: usize| {
            let kernel_ops = kernel_ops.iter().enumerate();
            kernel_ops.filter(move |(_, kernel_op)| kernel_op.ops.contains(&op))
        };
        for kernel_op in kernel_ops {
            let own = kernel_op.ops.first().and_then(|&op| self.ops.get_mut(op));
            let reasons = kernel_op.refusals.iter();
            let reasons = reasons.map(|(pass, reason)| format!("{pass}: {reason}"));
            if let Some(op) = own {
                op.not_fused.extend(reasons);
            }
        }
        for edge in &mut self.dependencies {
            let is_from = |kernel_op: usize| kernel_ops[kernel_op].ops.contains(&edge.from);
            let by_mailbox =
                of(edge.to).any(|(_, kernel_op)| kernel_op.sources.iter().any(|&s| is_from(s)));
            let in_one = of(edge.to).any(|(kernel_op, _)| is_from(kernel_op));
            edge.link = Some(match (by_mailbox, in_one) {
                (true, _) => Link::Mailbox,
                (false, true) => Link::Fused,
                (false, false) => Link::Barrier,
            });
        }
    }
}

/// Returns, for each op, which of the ops before it precede it in every valid order. Calls `edge(from, to, ..)` for each conflict that does
/// not follow from others, ordered by `to`.
fn predecessors(
    accesses: &[&Access],
    mut edge: impl FnMut(usize, usize, Operand, Hazard),
) -> Vec<Vec<bool>> {
    let mut behind: Vec<Vec<bool>> = Vec::with_capacity(accesses.len());
    for (to, later) in accesses.iter().enumerate() {
        let mut before = vec![false; to];
        for from in (0..to).rev() {
            if before[from] {
                continue;
            }
            let Some((operand, hazard)) = accesses[from].conflict(later) else {
                continue;
            };
            before[from] = true;
            for (before, also) in before.iter_mut().zip(&behind[from]) {
                *before |= also;
            }
            edge(from, to, operand, hazard);
        }
        behind.push(before);
    }
    behind
}

/// Returns, for each `chosen` op, the number of chosen ops that may run at the same time, itself included. `accesses` covers all ops.
pub(super) fn concurrent(accesses: &[&Access], chosen: &[usize]) -> Vec<usize> {
    let behind = predecessors(accesses, |_, _, _, _| {});
    let together = |a: usize, b: usize| a == b || !behind[a.max(b)][a.min(b)];
    let count = |&a: &usize| chosen.iter().filter(|&&b| together(a, b)).count();
    chosen.iter().map(count).collect()
}

/// Returns a readable name of an operand.
pub fn name(operand: Operand, plan: &StatePlan) -> String {
    match operand {
        Operand::State(tensor) => {
            let tensor = &plan.tensors()[tensor];
            match tensor.layer {
                Some(layer) => format!("state {layer}.{}", tensor.name),
                None => format!("state {}", tensor.name),
            }
        }
        Operand::Columns(View {
            buffer: RESIDUAL, ..
        }) => "residual".into(),
        Operand::Columns(view) => {
            let end = view.start + view.width;
            format!("buffer {}[{}..{end}]", view.buffer, view.start)
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ops = self.ops.len();
        writeln!(f, "{ops} ops in {} levels", self.levels)?;
        if let Some(gpu) = &self.gpu {
            writeln!(f, "{gpu}")?;
        }
        writeln!(f, "{:>4}  {:>5}  {:>5}  op", "op", "layer", "level")?;
        let mut dependencies = self.dependencies.iter().peekable();
        for (index, op) in self.ops.iter().enumerate() {
            let layer = op
                .layer
                .map_or_else(|| "-".into(), |layer| layer.to_string());
            writeln!(f, "{index:>4}  {layer:>5}  {:>5}  {}", op.level, op.op)?;
            writeln!(f, "{:>20}reads {}", "", op.reads.join(", "))?;
            writeln!(f, "{:>20}writes {}", "", op.writes.join(", "))?;
            while let Some(edge) = dependencies.next_if(|edge| edge.to == index) {
                let why = match edge.hazard {
                    Hazard::ReadAfterWrite => "reads what it wrote",
                    Hazard::WriteAfterRead => "overwrites what it read",
                    Hazard::WriteAfterWrite => "overwrites what it wrote",
                };
                let (from, tensor) = (edge.from, &edge.tensor);
                let link = match edge.link {
                    None => "",
                    Some(Link::Barrier) => ", grid barrier",
                    Some(Link::Mailbox) => ", mailbox",
                    Some(Link::Fused) => ", fused",
                };
                writeln!(f, "{:>20}after op {from}: {why}, {tensor}{link}", "")?;
            }
            for reason in &op.not_fused {
                writeln!(f, "{:>20}not fused: {reason}", "")?;
            }
        }
        Ok(())
    }
}
