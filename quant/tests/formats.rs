//! Formats compared with vectors made by ggml's Python package (`data/make_vectors.py`), and the error of the encoders.

use std::path::Path;

use waterline_quant::{
    BF16, Bytes, F16, F32, FORMATS, Format, Matrix, Q4_0, Q4_K, Q5_K, Q6_K, Q8_0, REORDERED,
};

fn data(name: &str) -> Vec<u8> {
    std::fs::read(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/data")
            .join(name),
    )
    .unwrap()
}

fn floats(name: &str) -> Vec<f32> {
    data(name)
        .as_chunks()
        .0
        .iter()
        .map(|&bytes| f32::from_le_bytes(bytes))
        .collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn encode(format: &Format, values: &[f32]) -> Vec<u8> {
    let mut blocks = vec![0; format.row_bytes(values.len()).unwrap()];
    format.encode(values, &mut blocks);
    blocks
}

fn decode(format: &Format, blocks: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; blocks.len() / format.block_bytes * format.block_len];
    format.decode(blocks, &mut values);
    values
}

#[test]
fn decoding_matches_ggml_bit_for_bit() {
    for &format in FORMATS.iter().filter(|&&format| format != &F32) {
        let values = decode(format, &data(&format!("{}.blocks", format.name)));
        assert_eq!(
            bits(&values),
            bits(&floats(&format!("{}.values", format.name))),
            "{format}"
        );
    }
}

#[test]
fn encoding_matches_ggml_bit_for_bit() {
    let values = floats("encode.values");
    for format in [&F16, &BF16, &Q8_0, &Q4_0] {
        assert!(
            encode(format, &values) == data(&format!("{}.blocks", format.name)),
            "{format}"
        );
    }
    assert_eq!(bits(&decode(&F32, &encode(&F32, &values))), bits(&values));
}

#[test]
fn encoding_matches_llama_quantize_bit_for_bit() {
    let values = floats("rows.values");
    for &format in FORMATS.iter().filter(|format| format.block_len > 1) {
        let expected = data(&format!("{}.encoded", format.name));
        let row_bytes = format.row_bytes(256).unwrap();
        let rows = values.chunks(256).zip(expected.chunks(row_bytes));
        for (row, (values, expected)) in rows.enumerate() {
            assert_eq!(encode(format, values), expected, "{format}, row {row}");
        }
    }
}

#[test]
fn encoding_with_an_importance_matrix_matches_llama_quantize_bit_for_bit() {
    let (values, importance) = (floats("rows.values"), floats("row.importance"));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut tested = 0;
    for &format in FORMATS.iter().filter(|format| format.block_len > 1) {
        let weighted = folder.join(format!("{}.weighted", format.name));
        // Q8_0 and MXFP4 are encoded without an importance matrix.
        let name = if weighted.exists() {
            "weighted"
        } else {
            "encoded"
        };
        tested += usize::from(weighted.exists());
        let expected = data(&format!("{}.{name}", format.name));
        let row_bytes = format.row_bytes(256).unwrap();
        let rows = values.chunks(256).zip(expected.chunks(row_bytes));
        for (row, (values, expected)) in rows.enumerate() {
            let mut blocks = vec![0; row_bytes];
            format.encode_row(values, &importance, &mut blocks);
            assert_eq!(blocks, expected, "{format}, row {row}");
        }
    }
    assert_eq!(tested, 12);
}

/// Deterministic Gaussian numbers.
fn gaussian(len: usize) -> Vec<f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 40) as f32 + 0.5) / (1u64 << 24) as f32
    };
    (0..len)
        .map(|_| (-2.0 * uniform().ln()).sqrt() * (std::f32::consts::TAU * uniform()).cos())
        .collect()
}

fn relative_error(format: &Format, values: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let decoded = decode(format, &encode(format, values));
    let error: f64 = values
        .iter()
        .zip(&decoded)
        .map(|(a, b)| square(a - b))
        .sum();
    (error / values.iter().map(|&x| square(x)).sum::<f64>()).sqrt()
}

#[test]
fn encoders_are_as_precise_as_their_bits_allow() {
    // Root mean square error divided by the root mean square of the numbers, for Gaussian weights.
    let values = gaussian(1 << 16);
    for (format, bound) in BOUNDS {
        let error = relative_error(format, &values);
        println!("{format}: {error:.5}");
        assert!(error <= bound, "{format}: {error}, bound {bound}");
        for factor in [0.02, 1e3] {
            let scaled: Vec<f32> = values.iter().map(|x| x * factor).collect();
            assert!(
                relative_error(format, &scaled) <= bound * 1.05,
                "{format}, times {factor}"
            );
        }
    }
}

static BOUNDS: [(&Format, f64); 7] = [
    (&F16, 0.00022),
    (&BF16, 0.0017),
    (&Q8_0, 0.0055),
    (&Q6_K, 0.018),
    (&Q5_K, 0.0362),
    (&Q4_K, 0.0714),
    (&Q4_0, 0.087),
];

#[test]
fn encoders_survive_odd_numbers() {
    for format in FORMATS {
        for special in [
            f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::MAX,
            f32::MIN_POSITIVE,
            1e-45,
        ] {
            let mut values = gaussian(512);
            values[300] = special;
            decode(format, &encode(format, &values));
            decode(format, &encode(format, &[special; 256]));
        }
        // Constants are representable in every format.
        for constant in [0.0, 1.0, -0.5] {
            let decoded = decode(format, &encode(format, &[constant; 256]));
            for value in decoded {
                assert!(
                    (value - constant).abs() <= 0.002 * constant.abs(),
                    "{format}: {constant} became {value}"
                );
            }
        }
    }
}

#[test]
fn decoding_survives_any_bytes() {
    for format in FORMATS {
        for byte in 0..=255 {
            decode(format, &vec![byte; format.block_bytes]);
        }
    }
}

#[test]
fn formats_are_found_by_name_and_number() {
    for format in FORMATS {
        assert_eq!(
            Format::by_name(&format.name.to_lowercase()).unwrap(),
            format
        );
        assert_eq!(Format::by_ggml_type(format.ggml_type).unwrap(), format);
        assert_eq!(
            format.row_bytes(512).unwrap(),
            512 / format.block_len * format.block_bytes
        );
    }
    let message = Format::by_name("iq3_s").unwrap_err().to_string();
    assert!(
        message.contains("'iq3_s'") && message.contains("Q4_K"),
        "{message}"
    );
    assert!(Format::by_ggml_type(21).is_err());
    let message = Q4_K.row_bytes(300).unwrap_err().to_string();
    assert!(
        message.contains("300") && message.contains("256"),
        "{message}"
    );
    assert!(F32.tensor_bytes(&[usize::MAX, usize::MAX]).is_err());
    assert_eq!(F32.tensor_bytes(&[]).unwrap(), 4);
}

#[test]
fn another_order_has_the_same_numbers() {
    let values = gaussian(4 * 1024);
    for format in REORDERED {
        let plain = format.plain();
        let stored = encode(plain, &values);
        let ordered = format.reorder(&stored, plain).expect("an order of it");
        assert_ne!(ordered, stored, "{format}");
        assert_eq!(ordered, encode(format, &values), "{format}");
        assert_eq!(decode(format, &ordered), decode(plain, &stored), "{format}");
        assert_eq!(plain.reorder(&ordered, format).as_ref(), Some(&stored));
        assert_eq!(format.reorder(&stored, &Q8_0), None);
        // Each row has two blocks.
        let matrix = Matrix::new(format, 4, 1024, Bytes::from_vec(ordered)).expect("matrix");
        let rows = Matrix::new(plain, 4, 1024, Bytes::from_vec(stored)).expect("matrix");
        let layouts = [&matrix, &rows].map(|m| m.device_layout().unwrap_or(m.bytes().to_vec()));
        assert_eq!(layouts[0], layouts[1], "{format}: on a device");
    }
}
