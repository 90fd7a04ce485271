//! Checkpoints: single files, shards, odd offsets, and forged files.

mod stored;

use std::path::Path;

use stored::{Stored, safetensors};
use waterline_quant::safetensors::Checkpoint;

/// Writes a file: a JSON header padded with `pad` spaces, and data.
fn write(path: &Path, header: &str, pad: usize, data: &[u8]) {
    let header = format!("{header}{}", " ".repeat(pad));
    let bytes = [
        &(header.len() as u64).to_le_bytes()[..],
        header.as_bytes(),
        data,
    ]
    .concat();
    std::fs::write(path, bytes).unwrap();
}

fn floats(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

const TWO: &str = r#"{"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[2],"data_offsets":[8,12]}}"#;

fn two() -> Vec<u8> {
    [floats(&[1.5, -2.0]), vec![0x80, 0x3f, 0x00, 0xc0]].concat()
}

#[test]
fn tensors_are_read_wherever_they_lie() {
    let folder = tempfile::tempdir().unwrap();
    // Every offset of the data modulo 4: aligned tensors are used in place, others are copied.
    for pad in 0..4 {
        write(&folder.path().join("model.safetensors"), TWO, pad, &two());
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["a", "b"]);
        let a = checkpoint.tensor("a").unwrap();
        assert_eq!(
            (a.format.name, &a.shape[..], a.to_f32()),
            ("F32", &[2, 1][..], vec![1.5, -2.0])
        );
        assert!((a.data.as_ptr() as usize).is_multiple_of(4));
        assert_eq!(checkpoint.tensor("b").unwrap().to_f32(), [1.0, -2.0]);
        assert_eq!(checkpoint.shape("b"), Some(&[2][..]));
    }
}

#[test]
fn integers_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("case.safetensors");
    let header = r#"{"x":{"dtype":"I64","shape":[2],"data_offsets":[0,16]},"y":{"dtype":"I32","shape":[1],"data_offsets":[16,20]}}"#;
    let data = [
        &7i64.to_le_bytes()[..],
        &(-1i64).to_le_bytes(),
        &(-5i32).to_le_bytes(),
    ]
    .concat();
    write(&path, header, 0, &data);
    let checkpoint = Checkpoint::open_file(&path).unwrap();
    assert_eq!(checkpoint.read_i64("x").unwrap(), (vec![2], vec![7, -1]));
    assert_eq!(checkpoint.read_i64("y").unwrap(), (vec![1], vec![-5]));
    let message = checkpoint.tensor("x").unwrap_err().to_string();
    assert!(
        message.contains("case.safetensors") && message.contains("'x'") && message.contains("I64"),
        "{message}"
    );
    let message = checkpoint.read_i64("z").unwrap_err().to_string();
    assert!(
        message.contains("'z'") && message.contains("missing"),
        "{message}"
    );
}

#[test]
fn shards_are_joined() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let index = |map: &str| std::fs::write(at("model.safetensors.index.json"), map).unwrap();
    write(&at("1.safetensors"), TWO, 0, &two());
    let other = r#"{"c":{"dtype":"F16","shape":[],"data_offsets":[0,2]}}"#;
    write(&at("2.safetensors"), other, 0, &[0x00, 0x3c]);

    index(r#"{"weight_map":{"a":"1.safetensors","b":"1.safetensors","c":"2.safetensors"}}"#);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.names().count(), 3);
    assert_eq!(checkpoint.tensor("c").unwrap().to_f32(), [1.0]);

    for (map, part) in [
        (r#"{"weight_map":{"d":"2.safetensors"}}"#, "'d'"),
        (r#"{"weight_map":{"a":"3.safetensors"}}"#, "3.safetensors"),
        (
            r#"{"weight_map":{"a":"../1.safetensors"}}"#,
            "../1.safetensors",
        ),
        (r#"{"weight_map":{"a":7}}"#, "'a'"),
        (r#"{"weights":{}}"#, "weight_map"),
        ("{", "JSON"),
    ] {
        index(map);
        let message = Checkpoint::open(folder.path()).err().unwrap().to_string();
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn damaged_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let message = Checkpoint::open(folder.path()).err().unwrap().to_string();
    assert!(
        message.contains("model.safetensors") && message.contains("open"),
        "{message}"
    );
    write(&path, TWO, 0, &two());
    let bytes = std::fs::read(&path).unwrap();
    for len in 0..bytes.len() {
        std::fs::write(&path, &bytes[..len]).unwrap();
        assert!(Checkpoint::open_file(&path).is_err(), "{len} bytes");
    }
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&path, &flipped).unwrap();
        if let Ok(checkpoint) = Checkpoint::open_file(&path) {
            for name in checkpoint.names() {
                let _ = checkpoint.tensor(name).map(|tensor| tensor.to_f32());
            }
        }
    }
}

/// Opens a file with these tensors.
fn open(tensors: &[Stored]) -> Result<Checkpoint, waterline_quant::Error> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("model.safetensors"),
        safetensors(tensors),
    )
    .unwrap();
    Checkpoint::open(folder.path())
}

fn values(checkpoint: &Checkpoint, name: &str) -> (Vec<usize>, Vec<f32>) {
    let tensor = checkpoint.tensor(name).unwrap();
    (tensor.shape.clone(), tensor.to_f32())
}

#[test]
fn fp8_is_multiplied_by_the_scales_of_its_blocks() {
    // 130 rows of 3 numbers, in blocks of 128 rows.
    let checkpoint = open(&[
        (
            "a.weight",
            "F8_E4M3",
            &[130, 3],
            [[0x38, 0xb8, 0x40]; 130].concat(),
        ),
        ("a.weight_scale_inv", "F32", &[2, 1], floats(&[2.0, 0.5])),
        ("a.input_scale", "F32", &[], floats(&[3.0])),
        ("b.weight", "F8_E4M3", &[2, 2], vec![0x38; 4]),
        (
            "b.weight_scale",
            "BF16",
            &[2, 1],
            vec![0x80, 0x3f, 0x00, 0x40],
        ),
        ("c.weight", "I8", &[1, 2], vec![3, 0xff]),
        ("c.weight_scale", "F32", &[1], floats(&[1e6])),
        ("d.weight", "F8_E5M2", &[1], vec![0x3c]),
        ("e.weight", "F8_E4M3", &[2, 1, 2], vec![0x38; 4]),
        ("e.weight_scale", "F32", &[2], floats(&[1.0, 4.0])),
    ])
    .unwrap();
    let (shape, found) = values(&checkpoint, "a.weight");
    assert_eq!(shape, [130, 3]);
    assert_eq!(
        (&found[..3], &found[127 * 3..][..6]),
        (&[2.0, -2.0, 4.0][..], &[2.0, -2.0, 4.0, 0.5, -0.5, 1.0][..])
    );
    assert_eq!(values(&checkpoint, "b.weight").1, [1.0, 1.0, 2.0, 2.0]);
    // These values are too large for f16.
    assert_eq!(values(&checkpoint, "c.weight").1, [3e6, -1e6]);
    assert_eq!(values(&checkpoint, "d.weight").1, [1.0]);
    assert_eq!(values(&checkpoint, "e.weight").1, [1.0, 1.0, 4.0, 4.0]);
    let names: Vec<_> = checkpoint.names().collect();
    assert_eq!(
        names,
        ["a.weight", "b.weight", "c.weight", "d.weight", "e.weight"]
    );
}

#[test]
fn four_bits_are_unpacked() {
    // A group of 16 numbers: the codes 0 to 15.
    let codes = || vec![0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe];
    let halves = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let fp4: Vec<f32> = halves
        .into_iter()
        .chain(halves.map(|value| -value))
        .collect();
    let checkpoint = open(&[
        ("a.weight", "U8", &[1, 8], codes()),
        ("a.weight_scale", "F8_E4M3", &[1, 1], vec![0x40]),
        ("a.weight_scale_2", "F32", &[], floats(&[0.25])),
        ("b.weight_packed", "U8", &[1, 8], codes()),
        ("b.weight_scale", "F8_E4M3", &[1, 1], vec![0x40]),
        ("b.weight_global_scale", "F32", &[1], floats(&[4.0])),
        ("b.input_global_scale", "F32", &[1], floats(&[4.0])),
        (
            "c.weight_packed",
            "I32",
            &[8, 1],
            [[0x10, 0x32, 0x54, 0x76]; 8].concat(),
        ),
        (
            "c.weight_scale",
            "F32",
            &[8, 2],
            floats(&[1.0, 10.0].repeat(8)),
        ),
        (
            "c.weight_shape",
            "I64",
            &[2],
            [8i64, 8].iter().flat_map(|n| n.to_le_bytes()).collect(),
        ),
        (
            "d.weight_packed",
            "I32",
            &[1, 1],
            vec![0x10, 0x32, 0x54, 0x76],
        ),
        ("d.weight_scale", "F32", &[1, 1], floats(&[1.0])),
        ("d.weight_zero_point", "I32", &[1, 1], vec![0x03, 0, 0, 0]),
        (
            "d.weight_shape",
            "I64",
            &[2],
            [1i64, 7].iter().flat_map(|n| n.to_le_bytes()).collect(),
        ),
        (
            "e.weight_packed",
            "U8",
            &[1, 16],
            [codes(), codes()].concat(),
        ),
        ("e.weight_scale", "U8", &[1, 1], vec![128]),
    ])
    .unwrap();
    let half: Vec<f32> = fp4.iter().map(|value| 0.5 * value).collect();
    assert_eq!(values(&checkpoint, "a.weight"), (vec![1, 16], half.clone()));
    assert_eq!(values(&checkpoint, "b.weight"), (vec![1, 16], half));
    let (shape, found) = values(&checkpoint, "c.weight");
    assert_eq!(shape, [8, 8]);
    assert_eq!(
        found[..8],
        [-8.0, -7.0, -6.0, -5.0, -40.0, -30.0, -20.0, -10.0]
    );
    assert_eq!(
        values(&checkpoint, "d.weight").1,
        [-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0]
    );
    let twice: Vec<f32> = fp4.iter().chain(&fp4).map(|value| 2.0 * value).collect();
    assert_eq!(values(&checkpoint, "e.weight").1, twice);
    assert_eq!(checkpoint.unused().count(), 0);
}

#[test]
fn scales_that_fit_no_blocks_are_refused() {
    let said = |tensors: &[(&str, &str, &[usize], Vec<u8>)]| match open(tensors)
        .and_then(|checkpoint| checkpoint.tensor("a.weight"))
    {
        Ok(_) => panic!("the scales were taken"),
        Err(error) => error.to_string(),
    };
    let weight = |shape: &'static [usize]| ("a.weight", "F8_E4M3", shape, vec![0x38; 12]);
    for (shape, scales) in [
        (&[4usize, 3][..], &[3usize, 3][..]),
        (&[4, 3], &[5, 1]),
        (&[4, 3], &[3]),
        (&[2, 2, 3], &[3, 1, 1]),
        (&[12], &[0, 4]),
        (&[3, 2, 2], &[6, 1]),
    ] {
        let count = scales.iter().product();
        let error = said(&[
            weight(shape),
            ("a.weight_scale", "F32", scales, floats(&vec![1.0; count])),
        ]);
        assert!(
            error.contains("tensor 'a.weight'") && error.contains("a scale for each block"),
            "{shape:?} {scales:?}: {error}"
        );
    }
    let words = |shape: &[i64]| {
        let shape = shape
            .iter()
            .flat_map(|n| n.to_le_bytes())
            .collect::<Vec<_>>();
        said(&[
            ("a.weight_packed", "I32", &[1, 1], vec![0; 4]),
            ("a.weight_scale", "F32", &[1, 1], floats(&[1.0])),
            ("a.weight_shape", "I64", &[shape.len() / 8], shape),
        ])
    };
    for shape in [
        &[1i64, -1][..],
        &[1],
        &[2, 8],
        &[1, 17],
        &[i64::MAX, i64::MAX],
        &[1, 0],
    ] {
        let error = words(shape);
        assert!(
            error.contains("tensor 'a.weight_packed'"),
            "{shape:?}: {error}"
        );
    }
}

#[test]
fn other_quantizations_are_named() {
    let shown = |name: &str, dtype: &str| {
        let checkpoint = open(&[
            (name, dtype, &[1], vec![0; 4]),
            ("x.scales", "F32", &[1], vec![0; 4]),
        ]);
        checkpoint.unwrap().foreign_quantization()
    };
    assert_eq!(shown("x.qweight", "I32"), Some("GPTQ or AWQ"));
    assert_eq!(shown("x.weight.absmax", "F32"), Some("bitsandbytes"));
    assert_eq!(shown("x.weight", "U32"), Some("MLX"));
    assert_eq!(shown("y.weight", "U32"), None);
}

#[test]
fn wrapped_and_headless_names_are_found() {
    let one = || vec![0; 4];
    let wrapped = open(&[
        ("_orig_mod.model.norm.weight", "F32", &[1], one()),
        ("module.lm_head.weight", "F32", &[1], one()),
    ])
    .unwrap();
    assert!(wrapped.contains("model.norm.weight") && wrapped.contains("lm_head.weight"));
    let headless = open(&[("norm.weight", "F32", &[1], one())]).unwrap();
    assert!(headless.contains("model.norm.weight") && !headless.contains("lm_head.weight"));
    headless.tensor("model.norm.weight").unwrap();
    assert_eq!(headless.unused().count(), 0);
}

#[test]
fn what_a_failed_download_left_is_named() {
    let folder = tempfile::tempdir().unwrap();
    for (text, name) in [
        (
            "version https://git-lfs.github.com/spec/v1\noid sha256:00\n",
            "git-lfs pointer",
        ),
        ("<!doctype html><html></html>", "a page of HTML"),
    ] {
        std::fs::write(folder.path().join("model.safetensors"), text).unwrap();
        let error = Checkpoint::open(folder.path()).err().unwrap().to_string();
        assert!(
            error.contains(name) && error.contains("model.safetensors"),
            "{error}"
        );
    }
}

/// Returns the error for a file with this header.
fn refused(header: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    write(&path, header, 0, &[]);
    Checkpoint::open(folder.path())
        .err()
        .expect("a refusal")
        .to_string()
}

#[test]
fn a_hole_that_could_hold_a_header_reserves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    for header in [1u64 << 20, 90 << 20, 4 << 30, u64::MAX] {
        std::fs::write(&path, header.to_le_bytes()).unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_len(12 << 30).unwrap();
        let error = Checkpoint::open(folder.path()).err().expect("a refusal");
        assert!(error.to_string().contains("header"), "{error}");
    }
}

#[test]
fn more_tensors_and_dimensions_than_any_model_has_are_refused() {
    let tensor = |i: usize| format!(r#""{i}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#);
    let tensors: Vec<String> = (0..=1 << 18).map(tensor).collect();
    let said = refused(&format!("{{{}}}", tensors.join(",")));
    assert!(said.contains("values, expected at most 524288"), "{said}");

    let shape = vec!["1"; 1 << 18].join(",");
    let header = format!(r#"{{"a":{{"dtype":"F32","shape":[{shape},0],"data_offsets":[0,0]}}}}"#);
    let said = refused(&header);
    assert!(
        said.contains("262145 dimensions, expected at most 8"),
        "{said}"
    );

    let folder = tempfile::tempdir().unwrap();
    let names: Vec<String> = (0..1 << 19).map(|i| format!(r#""{i}":"a""#)).collect();
    let index = format!(r#"{{"weight_map":{{{}}}}}"#, names.join(","));
    std::fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
    let said = Checkpoint::open(folder.path())
        .err()
        .expect("a refusal")
        .to_string();
    assert!(
        said.contains("more than the 1048576 that are read"),
        "{said}"
    );
}
