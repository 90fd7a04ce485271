//! The translation units that NVRTC compiles: kernels of a program. The unit of the decode kernel is in `decode/source.rs`.

use waterline_kernels::file;
use waterline_quant::{device_constants, device_files};

use crate::abi::DeviceType;
use crate::cuda::driver::{Driver, Kernel};
use crate::cuda::gemm::{Linears, Prologue, PrologueFlag, StepKind};
use crate::cuda::schedule::{Call, Queued, Rows, Source, Text};
use crate::error::Result;
use crate::functions::Activation;

const PRELUDE: Source = Source::new("cuda/prelude.cu", &[Rows::define, Activation::define]);
/// Common to all kernels, after the number formats.
const COMMON: &[Source] = &[
    // Matrix products and their prologues.
    Source::new(
        "cuda/gemm/prologue.cu",
        &[StepKind::define, PrologueFlag::define, Prologue::define],
    ),
    Source::new("cuda/gemm/simt.cu", &[Linears::define]),
    // PTX instructions of tensor cores and barriers.
    Source::new("cuda/instructions.cu", &[]),
    // Softmax over keys, for all kinds of attention.
    Source::new("ops/softmax/softmax.cu", &[]),
];

/// A translation unit.
pub(super) struct TranslationUnit {
    /// The whole text.
    pub text: String,
    /// The names of the kernels that it defines.
    pub kernels: Vec<String>,
}

impl TranslationUnit {
    /// Generates the text that defines these kernels of `calls`. It has the files of all calls, some of which use those of others.
    pub fn new(kernels: &[Definition], calls: &[&Queued]) -> Self {
        let mut text = Text::default();
        add_common(&mut text);
        text.add(calls.iter().flat_map(|queued| queued.call.source));
        let names = kernels.iter().enumerate().map(|(index, kernel)| {
            // The template's name, for profilers.
            let name = format!("{}_{index}", kernel.call.template());
            text.push(&kernel.wrapper.replace("NAME", &name));
            name
        });
        TranslationUnit {
            kernels: names.collect(),
            text: text.into_string(),
        }
    }

    /// Compiles the kernels and returns them in order.
    pub fn compile(&self, driver: &dyn Driver) -> Result<Vec<Kernel>> {
        driver.compile(&self.text, &self.kernels)
    }
}

/// The definition of a kernel.
pub(super) struct Definition<'a> {
    /// A call of the kernel.
    call: &'a Call,
    /// Its global function, named `NAME`.
    pub wrapper: String,
}

/// Returns the kernels of `calls`, each once, and for each call the index of its kernel.
pub(super) fn kernels_of<'a>(calls: &[&'a Queued]) -> (Vec<Definition<'a>>, Vec<usize>) {
    let (wrappers, of_call) = each_once(calls.iter().map(|queued| wrapper(queued)));
    let kernels = wrappers.into_iter().enumerate().map(|(index, wrapper)| {
        let first = of_call.iter().position(|&of| of == index);
        let call = &calls[first.expect("a call of each kernel")].call;
        Definition { call, wrapper }
    });
    (kernels.collect(), of_call)
}

/// Adds the files that all kernels use.
pub(super) fn add_common(text: &mut Text) {
    text.add([&PRELUDE]);
    text.push(&device_constants());
    device_files().for_each(|path| text.push(file(&path).text()));
    text.add(COMMON);
}

/// Returns the distinct texts, and for each given text its index among them.
pub(super) fn each_once(texts: impl Iterator<Item = String>) -> (Vec<String>, Vec<usize>) {
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

/// Generates a global function that calls one instance of a template, with the number of threads as a constant. For the emulator it is a
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

/// Like [`wrapper`], for a kernel whose parameters come from a table: the parameters of slot `blockIdx.z`, and of the `tokens` - 1 slots
/// after it, which a block processes in order. If a block needs another block's work on the previous slot, nothing begins early.
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
