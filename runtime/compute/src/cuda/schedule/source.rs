//! The translation units that NVRTC compiles: the kernels of a program, and the decode kernel.

use std::ops::Range;

use waterline_kernels::{File, file};
use waterline_quant::{device_constants, device_files};

use crate::cuda::decode::kernel::ROW_OPS;
use crate::cuda::decode::mailbox::Mailboxes;
use crate::cuda::schedule::{Form, Queued};

/// Common to all kernels.
const PRELUDE: File = file("cuda/prelude.cu");
/// Matrix products and their prologues.
const PROLOGUE: File = file("cuda/gemm/prologue.cu");
const SIMT: File = file("cuda/gemm/simt.cu");
/// PTX instructions of tensor cores and barriers.
const INSTRUCTIONS: File = file("cuda/instructions.cu");
/// Softmax over keys, for all kinds of attention.
const SOFTMAX: File = file("ops/softmax/softmax.cu");
/// The decode kernel: before the ops' files, and after them.
const MAILBOX: File = file("cuda/decode/mailbox.cu");
const CTA: File = file("cuda/decode/cta.cu");
const PIPELINE: File = file("cuda/decode/pipeline.cu");
const DECODE_PROLOGUE: File = file("cuda/decode/prologue.cu");
const EPILOGUE: File = file("cuda/decode/epilogue.cu");
const GEMV: File = file("cuda/decode/gemv.cu");
const KERNEL: File = file("cuda/decode/kernel.cu");
/// Row ops of its epilogues.
const PREPARE: File = file("ops/prepare/prepare.cu");

/// A translation unit, and the name in it of each call's kernel.
pub struct TranslationUnit {
    /// The whole text.
    pub text: String,
    /// The kernels that it defines, each once.
    pub kernels: Vec<String>,
    /// For each call, which kernel is its.
    pub of_call: Vec<usize>,
}

impl TranslationUnit {
    /// The text that defines every kernel of `calls`.
    pub fn new(calls: &[&Queued]) -> Self {
        let (wrappers, of_call) = each_once(calls.iter().map(|queued| wrapper(queued)));
        let mut names = vec![String::new(); wrappers.len()];
        for (queued, &index) in calls.iter().zip(&of_call) {
            // The template's name, for profilers.
            names[index] = format!("{}_{index}", queued.call.template());
        }
        let mut text = common() + &sources(calls.iter().map(|queued| queued.call.source));
        text.push_str(&size_checks(calls));
        for (wrapper, name) in wrappers.iter().zip(&names) {
            text.push_str(&wrapper.replace("NAME", name));
        }
        TranslationUnit {
            text,
            kernels: names,
            of_call,
        }
    }

    /// The text of the decode kernel with `calls` as its ops; `constants` are its sizes.
    pub fn decode(calls: &[&Queued], mailboxes: &[Mailboxes], constants: &str) -> Self {
        let ops = calls.iter().zip(mailboxes);
        let (cases, of_call) =
            each_once(ops.map(|(queued, mailboxes)| kernel_op(queued, mailboxes)));
        let mut names = vec![String::new(); cases.len()];
        for (queued, &index) in calls.iter().zip(&of_call) {
            names[index] = format!("op_{index:03}_{}", queued.call.template());
        }
        // Not inlined: common subexpressions of several ops would hold registers. The compiler lays functions out in the order of their
        // symbols; in another order than they run a step of Qwen3.5 0.8B took 2 % longer (H100).
        let functions: String = (cases.iter().zip(&names))
            .map(|(case, name)| {
                format!("\nextern \"C\" __device__ __noinline__ void {name}() {{ {case} }}\n")
            })
            .collect();
        let text = [
            constants,
            MAILBOX.text(),
            CTA.text(),
            &common(),
            &sources(
                calls
                    .iter()
                    .map(|queued| queued.call.source)
                    .chain([&[PREPARE][..]]),
            ),
            PIPELINE.text(),
            DECODE_PROLOGUE.text(),
            EPILOGUE.text(),
            GEMV.text(),
            &size_checks(calls),
            &functions,
            "\n__device__ inline void run_op(int function) {\n",
            &branches(&names, 0..names.len()),
            "}\n",
            KERNEL.text(),
        ];
        TranslationUnit {
            text: text.concat(),
            kernels: vec!["decode_kernel".into()],
            of_call,
        }
    }
}

/// Checks that each type of the calls' parameters has as many bytes in kernels as on the host.
fn size_checks(calls: &[&Queued]) -> String {
    let mut known: Vec<(&str, usize)> = Vec::new();
    for size in calls.iter().flat_map(|queued| queued.call.sizes()) {
        if !known.contains(&size) {
            known.push(size);
        }
    }
    let check = |(kind, bytes): &(&str, usize)| {
        format!("static_assert(sizeof({kind}) == {bytes}, \"{kind} on the host\");\n")
    };
    known.iter().map(check).collect()
}

/// Calls function number `function` of these by binary search. A switch becomes an indirect jump, which is slower.
fn branches(names: &[String], functions: Range<usize>) -> String {
    let Range { start, end } = functions;
    if functions.len() == 1 {
        return format!("  return {}();\n", names[start]);
    }
    let middle = start.midpoint(end);
    let (first, second) = (branches(names, start..middle), branches(names, middle..end));
    format!("  if (function < {middle}) {{\n{first}  }}\n{second}")
}

fn common() -> String {
    let formats: String = device_files().map(|path| file(&path).text()).collect();
    [
        PRELUDE.text(),
        &device_constants(),
        &formats,
        PROLOGUE.text(),
        SIMT.text(),
        INSTRUCTIONS.text(),
        SOFTMAX.text(),
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

/// The texts of files, each once.
fn sources(files: impl Iterator<Item = &'static [File]>) -> String {
    let mut found: Vec<File> = Vec::new();
    for file in files.flatten() {
        if !found.contains(file) {
            found.push(*file);
        }
    }
    found.into_iter().map(File::text).collect()
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
            let row_ops = if gemv.has_row_ops() {
                "&parameter<PrepareTasks>(this_op().row_ops)"
            } else {
                "nullptr"
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
    if queued.by_slot {
        return slot_wrapper(queued);
    }
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

/// As above for a kernel whose parameters come from a table: those of slot `blockIdx.z`, and of the `tokens` - 1 following slots,
/// which a block processes in order. If another block's work on the previous slot is needed, nothing begins early.
fn slot_wrapper(queued: &Queued) -> String {
    let call = &queued.call;
    let list: Vec<String> = (call.types().into_iter().zip(call.offsets()))
        .map(|(kind, at)| format!("*reinterpret_cast<{kind} const*>(parameters + {at})"))
        .collect();
    let (kernel, list, bytes) = (&call.kernel, list.join(", "), call.packed_bytes());
    let wait = if queued.prefetches() && queued.block_local {
        ""
    } else {
        "wait_for_dependencies(); launch_dependents(); "
    };
    let threads = call.threads;
    format!(
        "\n__device__ inline void NAME_slots(const u8* table, int stride, int tokens) {{\n  \
         __shared__ __align__(16) u8 parameters[{bytes}];\n  \
         table += (long long)blockIdx.z * stride;\n  \
         for (int t = 0; t < tokens; t++, table += stride) {{\n    \
         copy_parameters(parameters, table, {bytes});\n    \
         {wait}{kernel}({list});\n  }}\n}}\n\
         #ifndef WATERLINE_EMULATOR\n\
         extern \"C\" __global__ void __launch_bounds__({threads}) NAME(const u8* table, int stride, int tokens) \
         {{ NAME_slots(table, stride, tokens); }}\n\
         #else\n\
         extern \"C\" void NAME(const unsigned* grid, unsigned threads, unsigned shared, void** a) {{ \
         emulator::run(grid, threads, shared, [=] {{ NAME_slots(*(const u8**)a[0], *(int*)a[1], *(int*)a[2]); }}); }}\n\
         #endif\n"
    )
}
