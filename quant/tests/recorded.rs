//! Blocks, values and products that ggml recorded in the folder `shared/formats` beside the repository.

use std::path::Path;

use safetensors::SafeTensors;
use waterline_quant::{Activations, Bytes, Format, Matrix, Output, Simd};

const CASES: [&str; 14] = [
    "q1_0", "q2_0", "pq2_0", "tq1_0", "ptq1_0", "tq2_0", "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs",
    "iq2_s", "iq3_xxs", "iq3_s", "nvfp4",
];

fn floats(file: &SafeTensors, name: &str) -> Vec<f32> {
    let bytes = file.tensor(name).expect("an array").data();
    let numbers = bytes.as_chunks().0.iter();
    numbers.map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

fn doubles(file: &SafeTensors, name: &str) -> Vec<f64> {
    let bytes = file.tensor(name).expect("an array").data();
    let numbers = bytes.as_chunks().0.iter();
    numbers.map(|&bytes| f64::from_le_bytes(bytes)).collect()
}

#[test]
fn blocks_have_the_recorded_values_and_products() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/formats");
    if !folder.is_dir() {
        println!("skipped: number formats beside the repository");
        return;
    }
    for name in CASES {
        let bytes = std::fs::read(folder.join(format!("{name}.safetensors"))).expect("a case");
        let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
        let format = Format::by_name(name).expect("a format");
        let arrays = [("blocks", "values"), ("any_blocks", "any_values")];
        for (blocks, values) in arrays
            .into_iter()
            .filter(|(name, _)| file.tensor(name).is_ok())
        {
            let expected = floats(&file, values);
            let mut found = vec![0.0; expected.len()];
            format.decode(file.tensor(blocks).expect("blocks").data(), &mut found);
            for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert_eq!(found.to_bits(), expected.to_bits(), "{name}: {values} {i}");
            }
        }
        if file.tensor("vector").is_ok() {
            multiply(format, &file);
        }
    }
}

/// Compares the products of the recorded blocks with the recorded vector on every level of this CPU.
fn multiply(format: &'static Format, file: &SafeTensors) {
    let (vector, values) = (floats(file, "vector"), floats(file, "values"));
    let expected = doubles(file, "dot_rounded");
    let cols = vector.len();
    for simd in Simd::available() {
        let blocks = Bytes::from_vec(file.tensor("blocks").expect("blocks").data().to_vec());
        let matrix = Matrix::with_simd(format, 16, cols, blocks, simd).expect("a matrix");
        for tokens in [1, 9] {
            let mut x = Activations::new(tokens, cols).expect("memory");
            x.force_simd(simd);
            x.load(&vector.repeat(tokens), tokens, cols, format.rounding());
            let mut out = vec![0.0; tokens * 16];
            let output = Output::new(&mut out, 16);
            // SAFETY: only one thread.
            unsafe { matrix.mul_rows(0..16, 0, &x, &output, 0) };
            for (i, found) in out.iter().enumerate() {
                let terms = values[i % 16 * cols..][..cols].iter().zip(&vector);
                let scale: f64 = terms.map(|(w, x)| f64::from((w * x).abs())).sum();
                let error = (f64::from(*found) - expected[i % 16]).abs();
                assert!(
                    error <= 1e-6 * scale,
                    "{format} {simd:?}, {tokens} tokens, row {}: {error} of {scale}",
                    i % 16
                );
            }
        }
    }
}
