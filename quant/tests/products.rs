//! Products on every SIMD level of this CPU.

use waterline_quant::{
    Activations, BF16, BF16_IN_BF16, Bytes, F16, F16_IN_F16, F32, FORMATS, Format, Matrix, Output,
    Q4_K, Q8_0, REORDERED, Rounding, Simd,
};

/// Deterministic numbers in -1..1, with a few larger ones.
fn numbers(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..len)
        .map(|_| if next() > 0.98 { 6.0 * next() } else { next() })
        .collect()
}

fn matrix(format: &'static Format, rows: usize, cols: usize, simd: Simd) -> Matrix {
    let mut data = vec![0; rows * format.row_bytes(cols).unwrap()];
    format.encode_or_imitate(&numbers(rows * cols, 1), &mut data);
    Matrix::with_simd(format, rows, cols, Bytes::from_vec(data), simd).unwrap()
}

/// The rounding of inputs with which products equal those of the decoded values. For Q4_1 and Q5_1, ggml's own rounding also rounds the
/// sums of codes.
fn plain_rounding(format: &Format) -> Option<Rounding> {
    match format.name {
        "Q4_1" | "Q5_1" => Some(Rounding::SuperBlocks),
        _ => format.rounding(),
    }
}

/// Inputs for a matrix on a SIMD level.
fn inputs(format: &Format, [rows, cols]: [usize; 2], simd: Simd) -> Activations {
    let mut x = Activations::new(rows, cols).expect("memory");
    x.force_simd(simd);
    x.load(&numbers(rows * cols, 2), rows, cols, plain_rounding(format));
    x
}

/// Returns the product `[tokens, rows]`, computed in pieces that start at the given rows.
fn product(matrix: &Matrix, x: &Activations, starts: &[usize]) -> Vec<f32> {
    let width = matrix.rows() + 2;
    let mut out = vec![f32::NAN; x.rows() * width];
    let output = Output::new(&mut out, width);
    for (i, &start) in starts.iter().enumerate() {
        let end = starts.get(i + 1).copied().unwrap_or(matrix.rows());
        // SAFETY: only one thread.
        unsafe { matrix.mul_rows(start..end, 0, x, &output, 1) };
    }
    for row in out.chunks(width) {
        assert!(
            row[0].is_nan() && row[width - 1].is_nan(),
            "columns outside were written"
        );
    }
    out.chunks(width)
        .flat_map(|row| row[1..width - 1].to_vec())
        .collect()
}

/// From one block to many; for float formats also lengths that are a multiple of no vector length.
fn widths(format: &Format) -> Vec<usize> {
    match format.block_len {
        1 => vec![1, 3, 8, 15, 16, 17, 31, 64, 100, 257, 1000],
        32 => [1, 2, 3, 4, 5, 7, 8, 9, 31, 33]
            .map(|blocks| blocks * 32)
            .to_vec(),
        512 => [1, 2, 5, 33].map(|blocks| blocks * 512).to_vec(),
        len => [1, 2, 5, 9].map(|blocks| blocks * len).to_vec(),
    }
}

#[test]
fn every_level_agrees_with_the_definition() {
    // The definition is computed in f64 from the decoded values of the blocks and the rounded inputs.
    for format in FORMATS.into_iter().chain(REORDERED) {
        for cols in widths(format) {
            for simd in Simd::available() {
                let rows = 7;
                let matrix = matrix(format, rows, cols, simd);
                for tokens in [1, 2, 3, 5, 8, 33] {
                    let x = inputs(format, [tokens, cols], simd);
                    let out = product(&matrix, &x, &[0]);
                    for t in 0..tokens {
                        let x = effective_inputs(format, &x, t);
                        for r in 0..rows {
                            let mut w = vec![0.0; cols];
                            matrix.decode_row(r, &mut w);
                            let terms =
                                || w.iter().zip(&x).map(|(&w, &x)| f64::from(w) * f64::from(x));
                            let (expected, scale) =
                                (terms().sum::<f64>(), terms().map(f64::abs).sum::<f64>());
                            let found = f64::from(out[t * rows + r]);
                            assert!(
                                (found - expected).abs() <= 4e-6 * scale,
                                "{format} {simd:?} cols {cols} tokens {tokens} row {r}: {found}, expected {expected}"
                            );
                        }
                    }
                }
            }
        }
    }
}

/// Row `t` as products read it: exact for float formats, rounded to 8 bits for integer formats.
fn effective_inputs(format: &Format, x: &Activations, t: usize) -> Vec<f32> {
    if !format.is_integer_dot() {
        return x.row(t).to_vec();
    }
    let (codes, scales, _) = x.quantized_row(t);
    let code = |i: usize| codes[i / 128 * 128 + i % 32 / 16 * 64 + i % 128 / 32 * 16 + i % 16];
    (0..x.cols())
        .map(|i| scales[i / 32] * f32::from(code(i)))
        .collect()
}

#[test]
fn values_do_not_depend_on_tokens_or_splits() {
    for format in FORMATS.into_iter().chain(REORDERED) {
        for simd in Simd::available() {
            let (rows, cols, tokens) = (23, 1024 + format.block_len.min(32), 24);
            let cols = match format.block_len {
                64 | 128 => 1024 + format.block_len,
                256 => 1280,
                512 => 1536,
                _ => cols,
            };
            let matrix = matrix(format, rows, cols, simd);
            let values = numbers(tokens * cols, 2);
            let mut x = Activations::new(tokens, cols).expect("memory");
            x.force_simd(simd);
            x.load(&values, tokens, cols, format.rounding());
            let whole = product(&matrix, &x, &[0]);
            let pieces = product(&matrix, &x, &[0, 1, 4, 6, 13, 22]);
            assert_eq!(bits(&whole), bits(&pieces), "{format} {simd:?}: rows split");
            let mut parts = |count: usize| {
                let mut parts = Vec::new();
                for chunk in values.chunks(count * cols) {
                    x.load(chunk, chunk.len() / cols, cols, format.rounding());
                    parts.extend(product(&matrix, &x, &[0]));
                }
                bits(&parts)
            };
            for count in [8, 12] {
                let parts = parts(count);
                assert_eq!(bits(&whole), parts, "{format} {simd:?}: {count} at a time");
            }
            let one_by_one = parts(1);
            for count in [2, 3, 4, 6] {
                let parts = parts(count);
                assert_eq!(one_by_one, parts, "{format} {simd:?}: {count} at a time");
            }
        }
    }
}

#[test]
fn values_of_many_tokens_do_not_depend_on_their_number() {
    for format in FORMATS.into_iter().chain(REORDERED) {
        for simd in Simd::available() {
            let (rows, cols, tokens) = (39, 256 + format.block_len.min(32), 66);
            let cols = match format.block_len {
                64 | 128 => 256 + format.block_len,
                256 | 512 => 512,
                _ => cols,
            };
            let matrix = matrix(format, rows, cols, simd);
            let x = inputs(format, [tokens, cols], simd);
            let whole = product(&matrix, &x, &[0]);
            let mut parts = Vec::new();
            for first in [0, 33] {
                let mut part = inputs(format, [33, cols], simd);
                let values = numbers(tokens * cols, 2);
                let values = &values[first * cols..][..33 * cols];
                part.load(values, 33, cols, plain_rounding(format));
                parts.extend(product(&matrix, &part, &[0, 16, 32]));
            }
            assert_eq!(bits(&whole), bits(&parts), "{format} {simd:?}");
        }
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn inputs_are_rounded_alike_on_every_level() {
    let (rows, cols) = (3, 300);
    let mut values = numbers(rows * cols, 3);
    values[..32].fill(0.0);
    values[32..64].fill(1e-40);
    values[64] = 3e38;
    for rounding in [Rounding::Blocks, Rounding::SuperBlocks] {
        let rounded: Vec<_> = Simd::available()
            .map(|simd| {
                let mut x = Activations::new(rows, cols).expect("memory");
                x.force_simd(simd);
                x.load(&values, rows, cols, Some(rounding));
                (0..rows)
                    .map(|t| {
                        let (codes, scales, sums) = x.quantized_row(t);
                        (codes.to_vec(), bits(scales), bits(sums))
                    })
                    .collect::<Vec<_>>()
            })
            .collect();
        for other in &rounded[1..] {
            assert!(other == &rounded[0], "{rounding:?}");
        }
    }
}

/// Rounding follows ggml's `quantize_row_q8_0`, `quantize_row_q8_1` and `quantize_row_q8_K` on x86.
#[test]
fn inputs_are_rounded_as_ggml_rounds_them() {
    let cols = 512;
    let values = numbers(cols, 7);
    let spans = [
        ("Q4_0", 32),
        ("Q5_1", 32),
        ("MXFP4", 32),
        ("Q6_K", 256),
        ("IQ4_XS", 256),
    ];
    for (name, span) in spans {
        let format = Format::by_name(name).expect("format");
        let mut x = Activations::new(1, cols).expect("memory");
        x.load(&values, 1, cols, format.rounding());
        let rounded = effective_inputs(format, &x, 0);
        let (_, scales, _) = x.quantized_row(0);
        for (i, (exact, rounded)) in values.iter().zip(&rounded).enumerate() {
            let largest = values[i / span * span..][..span]
                .iter()
                .fold(0.0f32, |largest, x| largest.max(x.abs()));
            let code = (exact * (127.0 / largest)).round_ties_even();
            let scale = match span {
                32 => half::f16::from_f32(largest / 127.0).to_f32(),
                _ => 1.0 / (127.0 / largest),
            };
            assert_eq!(scales[i / 32], scale, "{format}");
            assert_eq!(*rounded, scale * code, "{format}");
        }
    }
}

/// The sums that the minima of Q4_1 and Q5_1 multiply are rounded separately, both in products of few tokens and in panels.
#[test]
fn sums_of_codes_are_rounded_as_ggml_rounds_them() {
    let (rows, cols) = (3, 256);
    for format in [&waterline_quant::Q4_1, &waterline_quant::Q5_1] {
        // All weights equal the minimum, which f16 represents exactly.
        let weights = vec![-1.5; rows * cols];
        let mut data = vec![0; format.tensor_bytes(&[rows, cols]).expect("whole blocks")];
        format.encode(&weights, &mut data);
        for (simd, tokens) in Simd::available().flat_map(|simd| [(simd, 1), (simd, 19)]) {
            let values = numbers(tokens * cols, 5);
            let data = Bytes::from_vec(data.clone());
            let matrix = Matrix::with_simd(format, rows, cols, data, simd).expect("a matrix");
            let mut x = Activations::new(tokens, cols).expect("memory");
            x.force_simd(simd);
            x.load(&values, tokens, cols, format.rounding());
            let found = product(&matrix, &x, &[0]);
            for t in 0..tokens {
                let blocks = values[t * cols..][..cols].chunks_exact(32);
                let sum = blocks.map(|block| {
                    let largest = block.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
                    let code = |x: &f32| (x * (127.0 / largest)).round_ties_even();
                    let sum = largest / 127.0 * block.iter().map(code).sum::<f32>();
                    f64::from(half::f16::from_f32(sum).to_f32())
                });
                let expected = -1.5 * sum.sum::<f64>();
                for found in &found[t * rows..][..rows] {
                    let error = (f64::from(*found) - expected).abs();
                    assert!(error < 1e-5, "{format} {simd:?}: {found} {expected}");
                }
            }
        }
    }
}

#[test]
fn inputs_are_rounded_for_the_format_and_f32_ones_stand_beside_8_bits() {
    let all: [&'static Format; 5] = [&F32, &Q8_0, &F16_IN_F16, &BF16_IN_BF16, &Q4_K];
    let found = all.map(|format| Rounding::for_shared_input(format, all));
    let expected = [
        Rounding::Blocks,
        Rounding::Blocks,
        Rounding::Halves,
        Rounding::Bf16,
        Rounding::SuperBlocks,
    ];
    assert_eq!(found, expected.map(Some));
    for format in [&F32, &F16, &BF16] {
        assert_eq!(
            Rounding::for_shared_input(format, [&F16_IN_F16, format]),
            None
        );
    }
    let values = numbers(2 * 37, 3);
    for format in [&F16, &F16_IN_F16, &BF16, &BF16_IN_BF16] {
        let matrix = matrix(format, 5, 37, Simd::detect());
        let mut x = Activations::new(2, 37).expect("memory");
        x.load(&values, 2, 37, format.rounding());
        assert!(!x.is_quantized() && !format.is_integer_dot());
        let read = |x: &f32| match format.rounding() {
            Some(Rounding::Halves) => half::f16::from_f32(*x).to_f32(),
            Some(_) => half::bf16::from_f32(*x).to_f32(),
            None => *x,
        };
        let read: Vec<f32> = values.iter().map(read).collect();
        assert_eq!(x.row(1), &read[37..], "{:?}", format.rounding());
        let mut row = vec![0.0; 37];
        matrix.decode_row(4, &mut row);
        let exact: f32 = row.iter().zip(x.row(1)).map(|(w, x)| w * x).sum();
        let found = product(&matrix, &x, &[0]);
        assert!((found[5 + 4] - exact).abs() < 1e-5, "{} {exact}", found[9]);
    }
}

#[test]
fn a_poisoned_input_poisons_its_token_only() {
    for format in FORMATS.into_iter().chain(REORDERED) {
        for simd in Simd::available() {
            let (rows, cols) = (5, 512);
            let matrix = matrix(format, rows, cols, simd);
            for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut values = numbers(3 * cols, 2);
                values[cols + 77] = poison;
                let mut x = Activations::new(3, cols).expect("memory");
                x.force_simd(simd);
                x.load(&values, 3, cols, format.rounding());
                let out = product(&matrix, &x, &[0]);
                for (i, value) in out.iter().enumerate() {
                    assert_eq!(
                        value.is_finite(),
                        i / rows != 1,
                        "{format} {simd:?} {poison}: {out:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn loading_fewer_columns_leaves_nothing_behind() {
    for simd in Simd::available() {
        let mut x = Activations::new(2, 1024).expect("memory");
        let format = &waterline_quant::Q4_0;
        x.load(&numbers(2048, 5), 2, 1024, format.rounding());
        x.load(&numbers(2 * 96, 2), 2, 96, format.rounding());
        let matrix = matrix(format, 3, 96, simd);
        assert_eq!(
            product(&matrix, &x, &[0]),
            product(&matrix, &inputs(format, [2, 96], simd), &[0])
        );
    }
}

#[test]
fn lengths_are_checked() {
    let q4_0 = &waterline_quant::Q4_0;
    assert!(Matrix::new(q4_0, 2, 64, Bytes::from_vec(vec![0; 71])).is_err());
    assert!(Matrix::new(q4_0, 2, 63, Bytes::from_vec(vec![0; 72])).is_err());
    assert!(Matrix::new(q4_0, usize::MAX, 64, Bytes::from_vec(vec![0; 72])).is_err());
    let matrix = Matrix::new(q4_0, 2, 64, Bytes::from_vec(vec![0; 72])).unwrap();
    let attempt = |x: &Activations, rows: std::ops::Range<usize>, width: usize, column: usize| {
        let mut out = vec![0.0; x.rows() * width];
        let output = Output::new(&mut out, width);
        // SAFETY: only one thread.
        std::panic::catch_unwind(|| unsafe { matrix.mul_rows(rows, 0, x, &output, column) }).is_ok()
    };
    let x = inputs(q4_0, [2, 64], Simd::detect());
    assert!(attempt(&x, 0..2, 3, 1));
    assert!(!attempt(&x, 0..3, 3, 0), "rows");
    assert!(!attempt(&x, 0..2, 3, 2), "columns of the output");
    assert!(
        !attempt(&inputs(q4_0, [2, 32], Simd::detect()), 0..2, 3, 0),
        "columns of the inputs"
    );
    let mut plain = Activations::new(1, 64).expect("memory");
    plain.load(&[0.0; 64], 1, 64, None);
    assert!(!attempt(&plain, 0..2, 3, 0), "unquantized inputs");
}

#[test]
fn picked_tokens_have_the_products_of_all() {
    for simd in Simd::available() {
        for format in FORMATS.into_iter().chain(REORDERED) {
            let cols = 3 * format.block_len.max(20);
            let matrix = matrix(format, 9, cols, simd);
            // Enough tokens that panels are loaded as well.
            let x = inputs(format, [21, cols], simd);
            let picked = [6, 20, 3, 3, 1, 2];
            let mut some = vec![f32::NAN; picked.len() * 6];
            matrix.mul_picked(2..7, &x, &picked, &mut some, 6);
            for (row, &t) in some.chunks(6).zip(&picked) {
                let mut one = Activations::new(1, cols).expect("memory");
                one.load(x.row(t as usize), 1, cols, plain_rounding(format));
                assert_eq!(row[..5], product(&matrix, &one, &[0])[2..7], "{format}");
                assert!(row[5].is_nan(), "a column outside was written");
            }
        }
    }
}
