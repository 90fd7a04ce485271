//! The translation unit of the decode kernel.

use std::ops::Range;

use super::control::{ControlWords, Wait};
use super::levels::KernelOp;
use super::mailbox::{MailboxBit, Mailboxes};
use super::pipeline::Segment;
use super::record::{OpRecord, ROW_OPS_PARAMETER};
use crate::abi::DeviceType;
use crate::cuda::gemm::EpilogueKind;
use crate::cuda::schedule::{Node, ROW_OPS, Source, Text};
use crate::cuda::source::{TranslationUnit, add_common, each_once};

/// Files before the ops' files.
const BEFORE: &[Source] = &[
    Source::new("cuda/decode/mailbox.cu", &[Wait::define]),
    Source::new(
        "cuda/decode/cta.cu",
        &[OpRecord::define, MailboxBit::define, ControlWords::define],
    ),
];
/// Files after the ops' files and before the ops' functions.
const AFTER: &[Source] = &[
    Source::new("cuda/decode/pipeline.cu", &[Segment::define]),
    Source::new("cuda/decode/prologue.cu", &[]),
    Source::new("cuda/decode/epilogue.cu", &[EpilogueKind::define]),
    Source::new("cuda/decode/gemv.cu", &[]),
];
/// The file after these in a kernel of several slots.
const SLOTS: Source = Source::new("cuda/decode/gemv_slots.cu", &[]);
/// The file after the ops' functions.
const KERNEL: Source = Source::new("cuda/decode/kernel.cu", &[]);

/// Returns the source text of the decode kernel with these ops, and for each op the number of its function. `constants` are the kernel's
/// sizes. If `in_slots`, it reads several tokens.
pub(super) fn decode_kernel(
    ops: &[KernelOp],
    mailboxes: &[Mailboxes],
    constants: &str,
    in_slots: bool,
) -> (TranslationUnit, Vec<usize>) {
    let cases = ops.iter().zip(mailboxes);
    let cases = cases.map(|(op, mailboxes)| kernel_op(op, mailboxes, in_slots));
    let (cases, of_call) = each_once(cases);
    let mut names = vec![String::new(); cases.len()];
    let calls = ops.iter().map(|op| op.queued);
    for (queued, &index) in calls.clone().zip(&of_call) {
        names[index] = format!("op_{index:03}_{}", queued.call.template());
    }
    let mut text = Text::default();
    text.push(constants);
    text.add(BEFORE);
    add_common(&mut text);
    text.add(calls.flat_map(|queued| queued.call.source));
    text.add(ROW_OPS);
    text.add(AFTER);
    text.add(in_slots.then_some(&SLOTS));
    // Not inlined: common subexpressions across ops would occupy registers. The compiler lays out functions in the order of their symbols;
    // in an order other than that of execution, a step of Qwen3.5 0.8B took 2 % longer (H100).
    for (case, name) in cases.iter().zip(&names) {
        text.push(&format!(
            "\nextern \"C\" __device__ __noinline__ void {name}() {{ {case} }}\n"
        ));
    }
    text.push("\n__device__ inline void run_op(int function) {\n");
    text.push(&branches(&names, 0..names.len()));
    text.push("}\n");
    text.add([&KERNEL]);
    let unit = TranslationUnit {
        text: text.into_string(),
        kernels: vec!["decode_kernel".into()],
    };
    (unit, of_call)
}

/// Generates a binary search that calls function number `function`. A switch becomes an indirect jump, which is slower.
fn branches(names: &[String], functions: Range<usize>) -> String {
    let Range { start, end } = functions;
    if functions.len() == 1 {
        return format!("  return {}();\n", names[start]);
    }
    let middle = start.midpoint(end);
    let (first, second) = (branches(names, start..middle), branches(names, middle..end));
    format!("  if (function < {middle}) {{\n{first}  }}\n{second}")
}

/// Generates the body of an op, which calls a template with the parameters of the op's record. `mailboxes` is the first template argument
/// of templates that use mailboxes. If `in_slots`, an op whose blocks depend on each other loads nothing before the previous token's op has
/// ended.
fn kernel_op(op: &KernelOp, mailboxes: &Mailboxes, in_slots: bool) -> String {
    let queued = op.queued;
    let call = &queued.call;
    let parameters = call.types().into_iter().zip(call.offsets());
    // A GEMV's row ops are passed separately, as null if it has none.
    let take = match queued.node {
        Node::Gemv(_) => ROW_OPS_PARAMETER,
        _ => usize::MAX,
    };
    let parameters = parameters.take(take);
    let list: Vec<String> = parameters
        .map(|(kind, at)| format!("parameter<{kind}>({at})"))
        .collect();
    let (kernel, list) = (&call.kernel, list.join(", "));
    let mailboxes = format!("constexpr int mailboxes = {};", mailboxes.bits());
    match &queued.node {
        Node::Gemv(gemv) => {
            let row_ops = if gemv.has_row_ops() {
                "&parameter<PrepareTasks>(this_op().row_ops)"
            } else {
                "nullptr"
            };
            let kernel = if in_slots {
                &kernel.replacen("streaming_gemv", "streaming_gemv_slots", 1)
            } else {
                kernel
            };
            format!("{mailboxes} {kernel}({list}, {row_ops}, op_segments(), this_op().segments);")
        }
        Node::RecurStep(_) if op.parameters.len() > 1 => {
            let kernel = kernel.replacen("recur_step", "recur_step_slots", 1);
            let bytes = call.packed_bytes();
            format!("{mailboxes} do {kernel}({list}, {bytes}); while (next_block());")
        }
        Node::RecurStep(_) => {
            let wait = if in_slots {
                "wait_for_dependencies(); "
            } else {
                ""
            };
            format!("{mailboxes} {wait}do {kernel}({list}); while (next_block());")
        }
        _ => {
            let prefetches = queued.prefetches() && (!in_slots || queued.block_local);
            let wait = if prefetches {
                ""
            } else {
                "wait_for_dependencies(); "
            };
            format!("{wait}do {kernel}({list}); while (next_block());")
        }
    }
}
