use serde_json::json;

use super::*;

#[test]
fn numbers_are_written_in_short_and_read_back_as_they_were() {
    let value = json!({ "eps": 1e-6f32, "list": [0.1f32, 3, -2.5f32, 0.1f64], "none": null });
    let short = r#"{"eps":1e-6,"list":[0.1,3,-2.5,0.1],"none":null}"#;
    assert_eq!(in_short(value).to_string(), short);
    let mut bits = 1u32;
    for _ in 0..100_000 {
        bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let x = f32::from_bits(bits);
        if x.is_finite() {
            let text = in_short(json!(x)).to_string();
            let read: f32 = serde_json::from_str(&text).unwrap();
            assert_eq!(read.to_bits(), bits, "{text}");
        }
    }
}

#[test]
fn names_are_short_enough_for_a_sentence() {
    let long = "a".repeat(LONGEST_NAME + 1);
    let config = Config::new("test", json!({ "kind": long, "list": [1] })).unwrap();
    for error in [
        config.string("kind").unwrap_err(),
        config.string("list").unwrap_err(),
        config.one_of("kind", (), &[("a", ())]).unwrap_err(),
        Config::parse("test", json!([{ "a": { long: 1 } }]).to_string().as_bytes())
            .err()
            .unwrap(),
    ] {
        assert!(error.to_string().len() < 200, "{error}");
    }
}

#[test]
fn reads_what_python_writes() {
    let text = br#"{"limit": [0.0, Infinity], "new": [0.5, {"__float__": "Infinity"}], "s": "NaN \" Infinity"}"#;
    let config = Config::parse("test", text).unwrap();
    let infinite = f32::INFINITY;
    assert_eq!(config.limits("limit", (1.0, 1.0)).unwrap(), (0.0, infinite));
    assert_eq!(config.limits("new", (1.0, 1.0)).unwrap(), (0.5, infinite));
    assert_eq!(config.limits("absent", (1.0, 2.0)).unwrap(), (1.0, 2.0));
    assert_eq!(config.string("s").unwrap(), "NaN \" Infinity");
    assert!(config.limits("s", (1.0, 1.0)).is_err());
    assert!(Config::parse("test", b"{\"a\": \"\\").is_err());
}
