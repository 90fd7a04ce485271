//! Puts a program's kernels together as one translation unit.

use std::ops::Range;

use waterline_quant::DEVICE_SOURCE;

use super::launches::{Form, Queued};
use super::passed::Passes;
use super::persistent::TASKS;

/// What all kernels share.
const PRELUDE: &str = include_str!("prelude.cu");
/// Matrix products and their inputs, which most stages need.
const INPUTS: &str = include_str!("../ops/project/gather.cu");
const MATRICES: &str = include_str!("../ops/project/project.cu");
/// Products of tiles on tensor cores, which most stages need for chunks.
const TENSOR: &str = include_str!("../ops/tensor.cu");
/// Softmax over keys, which all kinds of attention need.
const SOFTMAX: &str = include_str!("../ops/softmax/softmax.cu");
/// Before and behind the stages of a persistent program.
const PHASES: &str = include_str!("phases.cu");
const RING: &str = include_str!("../ops/project/weight_ring.cu");
const RING_INPUT: &str = include_str!("../ops/project/ring_input.cu");
const RING_ROWS: &str = include_str!("../ops/project/ring_rows.cu");
const RING_PRODUCTS: &str = include_str!("../ops/project/project_ring.cu");
const PERSISTENT: &str = include_str!("persistent.cu");
/// What rows of its products go through before they are stored.
const PREPARE: &str = include_str!("../ops/prepare/prepare.cu");

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

    /// The text of one kernel that goes through `calls` as phases, with what each of them passes; `constants` are its sizes.
    pub(super) fn of_phases(calls: &[&Queued], passes: &[Passes], constants: &str) -> Self {
        let phases = calls.iter().zip(passes);
        let (cases, of_call) = each_once(phases.map(|(queued, passes)| phase(queued, passes)));
        // Each has a place of its own in the machine code: inlined, what several have in common would hold registers.
        let functions: String = (cases.iter().enumerate())
            .map(|(index, case)| {
                format!("\n__device__ __noinline__ void phase_{index}() {{ {case} }}\n")
            })
            .collect();
        let text = [
            constants,
            PHASES,
            &common(),
            &sources(
                calls
                    .iter()
                    .map(|queued| queued.call.source)
                    .chain([PREPARE]),
            ),
            RING,
            RING_INPUT,
            RING_ROWS,
            RING_PRODUCTS,
            &functions,
            "\n__device__ inline void run_phase(int function) {\n",
            &branches(0..cases.len()),
            "}\n",
            PERSISTENT,
        ];
        Source {
            text: text.concat(),
            kernels: vec!["persistent".into()],
            of_call,
        }
    }
}

/// Calls the function of these that `function` names. A switch becomes jumps to what a table says, which take longer.
fn branches(functions: Range<usize>) -> String {
    let Range { start, end } = functions;
    if functions.len() == 1 {
        return format!("  return phase_{start}();\n");
    }
    let middle = start.midpoint(end);
    let (first, second) = (branches(start..middle), branches(middle..end));
    format!("  if (function < {middle}) {{\n{first}  }}\n{second}")
}

fn common() -> String {
    [PRELUDE, DEVICE_SOURCE, INPUTS, MATRICES, TENSOR, SOFTMAX].concat()
}

/// Every text once, and for each of the given ones which it is.
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

/// Texts of files, each once.
fn sources(files: impl Iterator<Item = &'static str>) -> String {
    each_once(files.map(str::to_owned)).0.concat()
}

/// Calls one instance of a template with the parameters of a phase. The templates of those that pass values begin with `passes`.
fn phase(queued: &Queued, passes: &Passes) -> String {
    let call = &queued.call;
    let parameters = call.types().into_iter().zip(call.offsets());
    // A product's rows may go through tasks, or not.
    let take = match queued.form {
        Form::Product(_) => TASKS,
        _ => usize::MAX,
    };
    let parameters = parameters.take(take);
    let list: Vec<String> = parameters
        .map(|(kind, at)| format!("parameter<{kind}>({at})"))
        .collect();
    let (kernel, list) = (&call.kernel, list.join(", "));
    let passes = format!("constexpr int passes = {};", passes.bits());
    match &queued.form {
        Form::Product(product) => {
            let tasks = match product.has_tasks() {
                true => "&parameter<PrepareTasks>(this_phase().tasks)",
                false => "nullptr",
            };
            format!("{passes} {kernel}({list}, {tasks}, these_segments(), this_phase().segments);")
        }
        Form::Recurrence(_) => format!("{passes} do {kernel}({list}); while (next_block());"),
        Form::Streams => format!("do {kernel}({list}); while (next_block());"),
        Form::Waits => format!("await_previous(); do {kernel}({list}); while (next_block());"),
    }
}

/// A global function that calls one instance of a template, with the number of threads as a constant. Under the
/// emulator it takes the launch instead.
fn wrapper(queued: &Queued) -> String {
    if queued.by_column {
        return column_wrapper(queued);
    }
    let (call, streams) = (&queued.call, queued.streams());
    let types = call.types();
    let list = |f: &dyn Fn(usize, &str) -> String| {
        let parts = types.iter().enumerate().map(|(i, kind)| f(i, kind));
        parts.collect::<Vec<_>>().join(", ")
    };
    let declared = list(&|i, kind| format!("{kind} a{i}"));
    let passed = list(&|i, _| format!("a{i}"));
    let unpacked = list(&|i, kind| format!("*({kind}*)a[{i}]"));
    let (kernel, threads) = (&call.kernel, call.threads);
    let wait = if streams {
        ""
    } else {
        "await_previous(); release_next(); "
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

/// The same for one whose parameters come from a table: those of column `blockIdx.z`, and of the `tokens` - 1 columns behind it, which
/// a block goes through one after another. Where another block's work on the column before is needed, nothing begins early.
fn column_wrapper(queued: &Queued) -> String {
    let call = &queued.call;
    let list: Vec<String> = (call.types().into_iter().zip(call.offsets()))
        .map(|(kind, at)| format!("*reinterpret_cast<{kind} const*>(parameters + {at})"))
        .collect();
    let (kernel, list, bytes) = (&call.kernel, list.join(", "), call.packed_bytes());
    let wait = match queued.streams() && queued.block_local {
        true => "",
        false => "await_previous(); release_next(); ",
    };
    let threads = call.threads;
    format!(
        "\n__device__ inline void NAME_columns(const u8* table, int stride, int tokens) {{\n  \
         __shared__ __align__(16) u8 parameters[{bytes}];\n  \
         table += (long long)blockIdx.z * stride;\n  \
         for (int t = 0; t < tokens; t++, table += stride) {{\n    \
         copy_parameters(parameters, table, {bytes});\n    \
         {wait}{kernel}({list});\n  }}\n}}\n\
         #ifndef WATERLINE_EMULATOR\n\
         extern \"C\" __global__ void __launch_bounds__({threads}) NAME(const u8* table, int stride, int tokens) \
         {{ NAME_columns(table, stride, tokens); }}\n\
         #else\n\
         extern \"C\" void NAME(const unsigned* grid, unsigned threads, unsigned shared, void** a) {{ \
         emulator::run(grid, threads, shared, [=] {{ NAME_columns(*(const u8**)a[0], *(int*)a[1], *(int*)a[2]); }}); }}\n\
         #endif\n"
    )
}
