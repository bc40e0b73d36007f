//! Sizes of a layer, by name or by numbers.

use mok::layer::MoeConfig;
use serde::Serialize;

/// A layer's sizes, and the tokens of each rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LayerShape {
    /// Routed experts.
    pub experts: u32,
    /// Hidden size.
    pub hidden: u32,
    /// Intermediate size of a routed expert.
    pub intermediate: u32,
    /// Experts of a token.
    pub top_k: u32,
    /// Intermediate size of the shared expert; 0 if there is none.
    pub shared: u32,
    /// Tokens of each rank, where nothing else says.
    pub tokens: u32,
}

const fn named(sizes: [u32; 5], shared: u32) -> LayerShape {
    let [experts, hidden, intermediate, top_k, tokens] = sizes;
    LayerShape {
        experts,
        hidden,
        intermediate,
        top_k,
        shared,
        tokens,
    }
}

/// Layers of models, each with a shared expert as large as a routed one.
const NAMED: [(&str, LayerShape); 5] = [
    ("tiny", named([8, 128, 128, 2, 24], 128)),
    ("kimi-k2.7", named([384, 7168, 2048, 8, 7168], 2048)),
    ("qwen3.5", named([512, 4096, 1024, 10, 7168], 1024)),
    ("dsv3", named([256, 7168, 2048, 8, 8192], 2048)),
    ("qwen3-235b", named([128, 4096, 1536, 8, 8192], 1536)),
];

impl LayerShape {
    /// What the emulator executes in seconds.
    pub fn tiny() -> LayerShape {
        NAMED[0].1
    }

    /// What fits one GPU.
    pub fn on_gpus() -> LayerShape {
        NAMED[4].1
    }

    /// From the command line: a name, or E,H,I,K,T.
    pub fn parse(text: &str) -> Result<LayerShape, String> {
        if let Some((_, shape)) = NAMED.iter().find(|(name, _)| *name == text) {
            return Ok(*shape);
        }
        let names: Vec<&str> = NAMED.iter().map(|(name, _)| *name).collect();
        let wrong = || {
            format!(
                "neither a name ({}) nor five numbers E,H,I,K,T: experts, hidden size, \
                 intermediate size, experts of a token, tokens of a rank",
                names.join(", ")
            )
        };
        let numbers: Result<Vec<u32>, _> =
            text.split(',').map(|part| part.trim().parse()).collect();
        let sizes = numbers.map_err(|_| wrong())?.try_into();
        let sizes: [u32; 5] = sizes.map_err(|_| wrong())?;
        Ok(named(sizes, 0))
    }

    /// A layer of this shape, with room for so many tokens on a rank.
    pub fn config(&self, max_tokens: usize) -> MoeConfig {
        let tokens = u32::try_from(max_tokens).unwrap_or(u32::MAX);
        MoeConfig::new(
            self.experts,
            self.hidden,
            self.intermediate,
            self.top_k,
            tokens,
        )
        .with_shared(self.shared)
    }

    /// Floating-point operations of so many routes and tokens.
    pub fn operations(&self, routes: u64, tokens: u64) -> f64 {
        let each =
            |rows: u64, inner: u32| 6.0 * rows as f64 * f64::from(self.hidden) * f64::from(inner);
        each(routes, self.intermediate) + each(tokens, self.shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        let shape = LayerShape::parse("dsv3").expect("a name");
        assert_eq!(
            (shape.experts, shape.shared, shape.tokens),
            (256, 2048, 8192)
        );
        let shape = LayerShape::parse("4, 64,128,2,9").expect("five numbers");
        assert_eq!(shape, named([4, 64, 128, 2, 9], 0));
        for wrong in [
            "",
            "dsv",
            "1,2,3,4",
            "1,2,3,4,5,6",
            "1,2,3,4,-5",
            "1,2,3,4,99999999999",
        ] {
            let told = LayerShape::parse(wrong).expect_err(wrong);
            assert!(
                told.contains("tiny") && told.contains("E,H,I,K,T"),
                "{told}"
            );
        }
    }

    #[test]
    fn every_named_layer_is_within_the_limits() {
        for (name, shape) in NAMED {
            let config = shape.config(shape.tokens as usize);
            config
                .check(1)
                .unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
}
