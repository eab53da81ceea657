//! Parameters as fields with shapes, against the same parameters by path.

use nn::*;

sequential! {
    Trunk: [2, 4, 4] -> [3] =
        conv: Conv2D<2, 4, 3, 1, 1, 1, 2>, norm: BatchNorm2D<4>, ReLU, Flatten, Linear<64, 3>
}

#[module]
struct Words<const D: usize> {
    tokens: Embedding<5, D>,
    positions: Param<T![3, D], Normal02>,
    blocks: Repeat<Residual<LinearSwish<4, 4>>, 2>,
    up: LinearNoBias<D, { 2 * D }>,
    down: LinearGELU<{ 2 * D }, D>,
    #[tied = "tokens.weight"]
    head: TiedLinear<D, 5>,
}
#[module]
impl<const D: usize> Words<D> {
    fn forward(&self, ids: Ids<T![3]>) -> T![3, 5] {
        let h = self.blocks(self.tokens(ids) + self.positions);
        self.head(h + self.down(self.up(h)))
    }
}
#[module]
type Small = Words<4>;

#[test]
fn a_view_shows_what_lies_at_the_path() {
    let mut weights = Weights::<Trunk, Cpu<f64>>::new(Cpu::default(), 1).unwrap();
    let view = weights.view();
    assert_eq!(view.conv.weight.to_vec(), weights.get("conv.weight").unwrap());
    assert_eq!(view.conv.weight.dims().to_string(), "[4, 1, 3, 3]");
    assert_eq!(view.conv.weight[[3, 0, 1, 2]], weights.get("conv.weight").unwrap()[3 * 9 + 5]);
    assert_eq!(view.conv.bias.unwrap().to_vec(), weights.get("conv.bias").unwrap());
    assert_eq!(view.norm.running_var.to_vec(), [1.0; 4]);
    let weight = weights.get("4.weight").unwrap();
    assert_eq!(view._4.weight.to_vec(), weight);
    assert_eq!(view._4.weight[[2, 63]], weight[2 * 64 + 63]);

    let mut view = weights.view_mut();
    view.norm.running_mean[[2]] = 7.0;
    view._4.weight[[1, 5]] = 0.5;
    view.conv.weight.copy_from(&[0.25; 36]);
    assert_eq!(weights.get("norm.running_mean").unwrap(), [0.0, 0.0, 7.0, 0.0]);
    assert_eq!(weights.get("4.weight").unwrap()[64 + 5], 0.5);
    assert_eq!(weights.get("conv.weight").unwrap(), [0.25; 36]);
    // What was not touched stayed.
    assert_eq!(weights.get("4.weight").unwrap()[64 + 6], weight[64 + 6]);
}

#[test]
fn views_go_through_repetition_residuals_raw_parameters_and_ties() {
    let mut weights = Weights::<Small, Cpu<f32>>::new(Cpu::default(), 2).unwrap();
    let view = weights.view();
    assert_eq!(view.tokens.weight.to_vec(), weights.get("tokens.weight").unwrap());
    assert_eq!(view.positions.to_vec(), weights.get("positions").unwrap());
    assert_eq!(view.positions[[2, 1]], weights.get("positions").unwrap()[9]);
    assert_eq!(view.blocks.len(), 2);
    for (i, block) in view.blocks.iter().enumerate() {
        assert_eq!(block.weight.to_vec(), weights.get(&format!("blocks.{i}.weight")).unwrap());
    }
    assert_eq!(view.up.weight.to_vec(), weights.get("up.weight").unwrap());
    assert!(view.up.bias.is_none());
    assert_eq!(view.down.weight.to_vec(), weights.get("down.weight").unwrap());
    assert!(view.head.weight.is_empty(), "a tied layer has nothing of its own");

    weights.view_mut().blocks[1].weight[[3, 0]] = -9.0;
    assert_eq!(weights.get("blocks.1.weight").unwrap()[12], -9.0);
}

sequential! {
    Sequences: [..6, 4] -> [..6, 3] =
        pos: PosEmbed<6, 4>, tuned: LoRALinear<4, 4, 2, 0.5>, gate: GradGate, lstm: LSTMSeq<4, 5, 6>, gru: GRUSeq<5, 3, 6>
}

#[test]
fn every_layer_with_parameters_has_a_view() {
    let mut weights = Weights::<Sequences, Cpu<f64>>::new(Cpu::default(), 3).unwrap();
    let get = |path: &str| weights.get(path).unwrap();
    let view = weights.view();
    assert_eq!(view.pos.weight.to_vec(), get("pos.weight"));
    assert_eq!(view.tuned.weight.to_vec(), get("tuned.weight"));
    assert_eq!(view.tuned.lora_a.to_vec(), get("tuned.lora_A.weight"));
    assert_eq!(view.tuned.lora_b.dims().to_string(), "[4, 2]");
    assert_eq!(view.tuned.bias.unwrap().to_vec(), get("tuned.bias"));
    assert_eq!(view.lstm.weight_ih_l0.to_vec(), get("lstm.weight_ih_l0"));
    assert_eq!(view.lstm.weight_hh_l0[[19, 4]], get("lstm.weight_hh_l0")[19 * 5 + 4]);
    assert_eq!(view.gru.bias_hh_l0.to_vec(), get("gru.bias_hh_l0"));
    weights.view_mut().gate.stop[[0]] = 1.0;
    assert_eq!(weights.get("gate.stop").unwrap(), [1.0]);
}

#[test]
fn gradients_have_the_same_view() {
    let mut model = Model::<Trunk, Cpu<f64>>::init(1, 2).unwrap();
    let x: Vec<f64> = (0..64).map(|i| f64::from(i % 7) - 3.0).collect();
    model.accumulate(&x, &[0, 2], &CrossEntropy::default()).unwrap();
    let view = model.gradient_view();
    assert_eq!(view._4.weight.to_vec(), model.gradient("4.weight").unwrap());
    assert_eq!(view.norm.weight.to_vec(), model.gradient("norm.weight").unwrap());
    assert!(view.norm.running_mean.is_empty(), "running statistics have no gradient");
}

#[test]
#[should_panic(expected = "index [0, 64] is out of range for a tensor of shape [3, 64]")]
fn an_index_past_the_end_is_a_panic() {
    let weights = Weights::<Trunk, Cpu<f32>>::new(Cpu::default(), 1).unwrap();
    let _ = weights.view()._4.weight[[0, 64]];
}

#[test]
#[should_panic(expected = "a tensor of shape [3] has another number of values")]
fn too_many_values_are_a_panic() {
    let mut weights = Weights::<Trunk, Cpu<f32>>::new(Cpu::default(), 1).unwrap();
    weights.view_mut()._4.bias.unwrap().copy_from(&[0.0; 4]);
}
