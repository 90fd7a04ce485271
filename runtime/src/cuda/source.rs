//! Puts a program's kernels together as one translation unit.

use waterline_quant::DEVICE_SOURCE;

use super::launches::Call;

const PRELUDE: &str = include_str!("prelude.cu");
/// Matrix products, which most stages need.
const MATRICES: &str = include_str!("../stages/project.cu");
/// Softmax over keys, which all kinds of attention need.
const SOFTMAX: &str = include_str!("../stages/softmax.cu");

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
    pub fn of(calls: &[&(Call, bool)]) -> Self {
        let mut text = [PRELUDE, DEVICE_SOURCE, MATRICES, SOFTMAX].concat();
        let mut sources: Vec<&str> = Vec::new();
        for (call, _) in calls {
            if !call.source.is_empty() && !sources.contains(&call.source) {
                sources.push(call.source);
                text.push_str(call.source);
            }
        }
        let mut wrappers: Vec<String> = Vec::new();
        let mut of_call = Vec::new();
        for (call, streams) in calls {
            let wrapper = wrapper(call, *streams);
            let known = wrappers.iter().position(|other| *other == wrapper);
            of_call.push(known.unwrap_or_else(|| {
                wrappers.push(wrapper);
                wrappers.len() - 1
            }));
        }
        let mut names = vec![String::new(); wrappers.len()];
        for ((call, _), &index) in calls.iter().zip(&of_call) {
            // The template's name, for profilers.
            let template = call.kernel.split('<').next().unwrap_or_default();
            names[index] = format!("{template}_{index}");
        }
        for (index, wrapper) in wrappers.iter().enumerate() {
            text.push_str(&wrapper.replace("NAME", &names[index]));
        }
        Source {
            text,
            kernels: names,
            of_call,
        }
    }
}

/// A global function that calls one instance of a template, with the number of threads as a constant. Under the
/// emulator it takes the launch instead.
fn wrapper(call: &Call, streams: bool) -> String {
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
