//! The translation units that NVRTC compiles: the kernels of a program, and the decode kernel.

use std::ops::Range;

use waterline_quant::DEVICE_SOURCE;

use crate::cuda::decode::kernel::ROW_OPS;
use crate::cuda::decode::mailbox::Mailboxes;
use crate::cuda::schedule::{Form, Queued};

/// Common to all kernels.
const PRELUDE: &str = include_str!("../prelude.cu");
/// Matrix products and their prologues.
const PROLOGUE: &str = include_str!("../gemm/prologue.cu");
const SIMT: &str = include_str!("../gemm/simt.cu");
/// PTX instructions of tensor cores and barriers.
const INSTRUCTIONS: &str = include_str!("../instructions.cu");
/// Softmax over keys, for all kinds of attention.
const SOFTMAX: &str = include_str!("../../ops/softmax/softmax.cu");
/// The decode kernel: before the ops' files, and behind them.
const MAILBOX: &str = include_str!("../decode/mailbox.cu");
const CTA: &str = include_str!("../decode/cta.cu");
const PIPELINE: &str = include_str!("../decode/pipeline.cu");
const DECODE_PROLOGUE: &str = include_str!("../decode/prologue.cu");
const EPILOGUE: &str = include_str!("../decode/epilogue.cu");
const GEMV: &str = include_str!("../decode/gemv.cu");
const KERNEL: &str = include_str!("../decode/kernel.cu");
/// Row ops of its epilogues.
const PREPARE: &str = include_str!("../../ops/prepare/prepare.cu");

/// A translation unit, and the name in it of each call's kernel.
pub(crate) struct Source {
    /// The whole text.
    pub text: String,
    /// The kernels that it defines, each once.
    pub kernels: Vec<String>,
    /// For each call, which kernel is its.
    pub of_call: Vec<usize>,
}

impl Source {
    /// The text that defines every kernel of `calls`.
    pub fn of(calls: &[&Queued]) -> Self {
        let (wrappers, of_call) = each_once(calls.iter().map(|queued| wrapper(queued)));
        let mut names = vec![String::new(); wrappers.len()];
        for (queued, &index) in calls.iter().zip(&of_call) {
            // The template's name, for profilers.
            let template = queued.call.kernel.split('<').next().unwrap_or_default();
            names[index] = format!("{template}_{index}");
        }
        let mut text = common() + &sources(calls.iter().map(|queued| queued.call.source));
        for (wrapper, name) in wrappers.iter().zip(&names) {
            text.push_str(&wrapper.replace("NAME", name));
        }
        Source {
            text,
            kernels: names,
            of_call,
        }
    }

    /// The text of the decode kernel with `calls` as its ops; `constants` are its sizes.
    pub fn decode(calls: &[&Queued], mailboxes: &[Mailboxes], constants: &str) -> Self {
        let phases = calls.iter().zip(mailboxes);
        let (cases, of_call) =
            each_once(phases.map(|(queued, mailboxes)| kernel_op(queued, mailboxes)));
        // Not inlined: common subexpressions of several ops would hold registers.
        let functions: String = (cases.iter().enumerate())
            .map(|(index, case)| {
                format!("\n__device__ __noinline__ void op_{index}() {{ {case} }}\n")
            })
            .collect();
        let text = [
            constants,
            MAILBOX,
            CTA,
            &common(),
            &sources(
                calls
                    .iter()
                    .map(|queued| queued.call.source)
                    .chain([PREPARE]),
            ),
            PIPELINE,
            DECODE_PROLOGUE,
            EPILOGUE,
            GEMV,
            &functions,
            "\n__device__ inline void run_op(int function) {\n",
            &branches(0..cases.len()),
            "}\n",
            KERNEL,
        ];
        Source {
            text: text.concat(),
            kernels: vec!["decode_kernel".into()],
            of_call,
        }
    }
}

/// Calls function number `function` by binary search. A switch becomes an indirect jump, which is slower.
fn branches(functions: Range<usize>) -> String {
    let Range { start, end } = functions;
    if functions.len() == 1 {
        return format!("  return op_{start}();\n");
    }
    let middle = start.midpoint(end);
    let (first, second) = (branches(start..middle), branches(middle..end));
    format!("  if (function < {middle}) {{\n{first}  }}\n{second}")
}

fn common() -> String {
    [
        PRELUDE,
        DEVICE_SOURCE,
        PROLOGUE,
        SIMT,
        INSTRUCTIONS,
        SOFTMAX,
    ]
    .concat()
}

/// The distinct texts, and for each given one its index among them.
fn each_once(texts: impl Iterator<Item = String>) -> (Vec<String>, Vec<usize>) {
    let mut found: Vec<String> = Vec::new();
    let of = texts.map(|text| {
        let known = found.iter().position(|other| *other == text);
        known.unwrap_or_else(|| {
            found.push(text);
            found.len() - 1
        })
    });
    let of = of.collect();
    (found, of)
}

/// The distinct texts of files.
fn sources(files: impl Iterator<Item = &'static str>) -> String {
    each_once(files.map(str::to_owned)).0.concat()
}

/// The body of an op: calls a template with the parameters of its record. `mailboxes` is the first template argument of those that use
/// mailboxes.
fn kernel_op(queued: &Queued, mailboxes: &Mailboxes) -> String {
    let call = &queued.call;
    let parameters = call.types().into_iter().zip(call.offsets());
    // A GEMV's row ops are passed apart, as null where it has none.
    let take = match queued.form {
        Form::Gemv(_) => ROW_OPS,
        _ => usize::MAX,
    };
    let parameters = parameters.take(take);
    let list: Vec<String> = parameters
        .map(|(kind, at)| format!("parameter<{kind}>({at})"))
        .collect();
    let (kernel, list) = (&call.kernel, list.join(", "));
    let mailboxes = format!("constexpr int mailboxes = {};", mailboxes.bits());
    match &queued.form {
        Form::Gemv(gemv) => {
            let row_ops = match gemv.has_row_ops() {
                true => "&parameter<PrepareTasks>(this_op().row_ops)",
                false => "nullptr",
            };
            format!("{mailboxes} {kernel}({list}, {row_ops}, op_segments(), this_op().segments);")
        }
        Form::Recurrence(_) => format!("{mailboxes} do {kernel}({list}); while (next_block());"),
        Form::Prefetches => format!("do {kernel}({list}); while (next_block());"),
        Form::Waits => {
            format!("wait_for_dependencies(); do {kernel}({list}); while (next_block());")
        }
    }
}

/// A global function that calls one instance of a template, with the number of threads as a constant. Under the emulator it is a
/// function that runs a launch.
fn wrapper(queued: &Queued) -> String {
    let (call, prefetches) = (&queued.call, queued.prefetches());
    let types = call.types();
    let list = |f: &dyn Fn(usize, &str) -> String| {
        let parts = types.iter().enumerate().map(|(i, kind)| f(i, kind));
        parts.collect::<Vec<_>>().join(", ")
    };
    let declared = list(&|i, kind| format!("{kind} a{i}"));
    let passed = list(&|i, _| format!("a{i}"));
    let unpacked = list(&|i, kind| format!("*({kind}*)a[{i}]"));
    let (kernel, threads) = (&call.kernel, call.threads);
    let wait = if prefetches {
        ""
    } else {
        "wait_for_dependencies(); launch_dependents(); "
    };
    format!(
        "\n#ifndef WATERLINE_EMULATOR\n\
         extern \"C\" __global__ void __launch_bounds__({threads}) NAME({declared}) \
         {{ {wait}{kernel}({passed}); }}\n\
         #else\n\
         extern \"C\" void NAME(const unsigned* grid, unsigned threads, unsigned shared, void** a) {{ \
         emulator::run(grid, threads, shared, [=] {{ {kernel}({unpacked}); }}); }}\n\
         #endif\n"
    )
}
