// CuTe's traits of wgmma in the widths that CUTLASS's plain headers leave out.
#pragma once

#include <cute/atom/mma_atom.hpp>
#include <cute/tensor.hpp>

#include "sm90/native/wgmma.cuh"

template <class E, int columns, cute::SM90::GMMA::Major a_major, cute::SM90::GMMA::Major b_major>
struct cute::MMA_Traits<cutwheel::gemm::Wgmma<E, columns, a_major, b_major>> {
  using ValTypeD = float;
  using ValTypeA = E;
  using ValTypeB = E;
  using ValTypeC = float;
  using FrgTypeA = cute::SM90::GMMA::smem_desc<a_major>;
  using FrgTypeB = cute::SM90::GMMA::smem_desc<b_major>;
  static constexpr int kK = 32 / static_cast<int>(sizeof(E));
  using Shape_MNK = cute::Shape<cute::_64, cute::Int<columns>, cute::Int<kK>>;
  using ThrID = cute::Layout<cute::_128>;
  using ALayout = cute::SM90::GMMA::ABLayout<64, kK>;
  using BLayout = cute::SM90::GMMA::ABLayout<columns, kK>;
  using CLayout = cute::SM90::GMMA::CLayout_64xN<columns>;
  cute::SM90::GMMA::ScaleOut accumulate_ = cute::SM90::GMMA::ScaleOut::One;
};
