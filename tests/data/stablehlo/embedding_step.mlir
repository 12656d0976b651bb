#loc1 = loc("p['out']")
#loc2 = loc("p['table']")
#loc3 = loc("ids")
#loc4 = loc("y")
#loc15 = loc("scatter-add")
module @jit_emb attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<16x100xf32> loc("p['out']"), %arg1: tensor<100x16xf32> loc("p['table']"), %arg2: tensor<4x8xi32> loc("ids"), %arg3: tensor<4x8xi32> loc("y")) -> (tensor<f32> {jax.result_info = "result[0]"}, tensor<16x100xf32> {jax.result_info = "result[1]['out']"}, tensor<100x16xf32> {jax.result_info = "result[1]['table']"}) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<4x8xi32>
    %1 = stablehlo.compare LT, %arg2, %0, SIGNED : (tensor<4x8xi32>, tensor<4x8xi32>) -> tensor<4x8xi1>
    %c_0 = stablehlo.constant dense<100> : tensor<i32>
    %2 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i32>) -> tensor<4x8xi32>
    %3 = stablehlo.add %arg2, %2 : tensor<4x8xi32>
    %4 = stablehlo.select %1, %3, %arg2 : tensor<4x8xi1>, tensor<4x8xi32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [0, 1] : (tensor<4x8xi32>) -> tensor<4x8x1xi32>
    %6 = "stablehlo.gather"(%arg1, %5) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16>}> : (tensor<100x16xf32>, tensor<4x8x1xi32>) -> tensor<4x8x16xf32>
    %7 = stablehlo.dot_general %6, %arg0, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x100xf32>) -> tensor<4x8x100xf32>
    %8:3 = call @log_softmax(%7) : (tensor<4x8x100xf32>) -> (tensor<4x8x100xf32>, tensor<4x8x100xf32>, tensor<4x8x1xf32>)
    %9 = stablehlo.broadcast_in_dim %arg3, dims = [0, 1] : (tensor<4x8xi32>) -> tensor<4x8x1xi32>
    %10:2 = call @take_along_axis(%8#0, %9) : (tensor<4x8x100xf32>, tensor<4x8x1xi32>) -> (tensor<4x8x1xf32>, tensor<4x8x1x1xi32>)
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %11 = stablehlo.reduce(%10#0 init: %cst) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<4x8x1xf32>, tensor<f32>) -> tensor<f32>
    %cst_1 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %12 = stablehlo.divide %11, %cst_1 : tensor<f32>
    %13 = stablehlo.negate %12 : tensor<f32>
    %cst_2 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %14 = stablehlo.negate %cst_2 : tensor<f32>
    %cst_3 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %15 = stablehlo.divide %14, %cst_3 : tensor<f32>
    %16 = stablehlo.broadcast_in_dim %15, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %17 = call @take_along_axis_0(%10#1, %16) : (tensor<4x8x1x1xi32>, tensor<4x8x1xf32>) -> tensor<4x8x100xf32>
    %18 = call @log_softmax_1(%8#1, %8#2, %17) : (tensor<4x8x100xf32>, tensor<4x8x1xf32>, tensor<4x8x100xf32>) -> tensor<4x8x100xf32>
    %19 = stablehlo.dot_general %18, %6, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x100xf32>, tensor<4x8x16xf32>) -> tensor<100x16xf32>
    %20 = stablehlo.transpose %19, dims = [1, 0] : (tensor<100x16xf32>) -> tensor<16x100xf32>
    %21 = stablehlo.dot_general %18, %arg0, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x100xf32>, tensor<16x100xf32>) -> tensor<4x8x16xf32>
    %cst_4 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %22 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<100x16xf32>
    %23 = "stablehlo.scatter"(%22, %5, %21) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 2>, unique_indices = false}> ({
    ^bb0(%arg4: tensor<f32> loc("scatter-add:"(#loc15)), %arg5: tensor<f32> loc("scatter-add:"(#loc15))):
      %24 = stablehlo.add %arg4, %arg5 : tensor<f32>
      stablehlo.return %24 : tensor<f32>
    }) : (tensor<100x16xf32>, tensor<4x8x1xi32>, tensor<4x8x16xf32>) -> tensor<100x16xf32>
    return %13, %20, %23 : tensor<f32>, tensor<16x100xf32>, tensor<100x16xf32>
  }
  func.func private @log_softmax(%arg0: tensor<4x8x100xf32>) -> (tensor<4x8x100xf32>, tensor<4x8x100xf32>, tensor<4x8x1xf32>) {
    %cst = stablehlo.constant dense<0xFF800000> : tensor<f32> loc(#loc16)
    %0 = stablehlo.reduce(%arg0 init: %cst) applies stablehlo.maximum across dimensions = [2] : (tensor<4x8x100xf32>, tensor<f32>) -> tensor<4x8xf32> loc(#loc16)
    %cst_0 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4x8xf32> loc(#loc17)
    %2 = stablehlo.maximum %1, %0 : tensor<4x8xf32> loc(#loc17)
    %3 = stablehlo.broadcast_in_dim %2, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x1xf32> loc(#loc18)
    %4 = stablehlo.broadcast_in_dim %3, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x100xf32> loc(#loc19)
    %5 = stablehlo.subtract %arg0, %4 : tensor<4x8x100xf32> loc(#loc19)
    %6 = stablehlo.exponential %5 : tensor<4x8x100xf32> loc(#loc20)
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32> loc(#loc21)
    %7 = stablehlo.reduce(%6 init: %cst_1) applies stablehlo.add across dimensions = [2] : (tensor<4x8x100xf32>, tensor<f32>) -> tensor<4x8xf32> loc(#loc21)
    %8 = stablehlo.broadcast_in_dim %7, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x1xf32> loc(#loc18)
    %9 = stablehlo.log %8 : tensor<4x8x1xf32> loc(#loc22)
    %10 = stablehlo.broadcast_in_dim %9, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x100xf32> loc(#loc19)
    %11 = stablehlo.subtract %5, %10 : tensor<4x8x100xf32> loc(#loc19)
    return %11, %6, %8 : tensor<4x8x100xf32>, tensor<4x8x100xf32>, tensor<4x8x1xf32>
  }
  func.func private @take_along_axis(%arg0: tensor<4x8x100xf32>, %arg1: tensor<4x8x1xi32>) -> (tensor<4x8x1xf32>, tensor<4x8x1x1xi32>) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<4x8x1xi32> loc(#loc23)
    %1 = stablehlo.compare LT, %arg1, %0, SIGNED : (tensor<4x8x1xi32>, tensor<4x8x1xi32>) -> tensor<4x8x1xi1> loc(#loc23)
    %c_0 = stablehlo.constant dense<100> : tensor<i32>
    %2 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i32>) -> tensor<4x8x1xi32> loc(#loc24)
    %3 = stablehlo.add %arg1, %2 : tensor<4x8x1xi32> loc(#loc24)
    %4 = stablehlo.select %1, %3, %arg1 : tensor<4x8x1xi1>, tensor<4x8x1xi32> loc(#loc25)
    %5 = stablehlo.reshape %4 : (tensor<4x8x1xi32>) -> tensor<4x8x1x1xi32> loc(#loc26)
    %c_1 = stablehlo.constant dense<99> : tensor<1xi32> loc(#loc27)
    %c_2 = stablehlo.constant dense<0> : tensor<i32> loc(#loc27)
    %6 = stablehlo.broadcast_in_dim %c_2, dims = [] : (tensor<i32>) -> tensor<4x8x1x1xi32> loc(#loc28)
    %7 = stablehlo.compare GE, %5, %6, SIGNED : (tensor<4x8x1x1xi32>, tensor<4x8x1x1xi32>) -> tensor<4x8x1x1xi1> loc(#loc28)
    %8 = stablehlo.broadcast_in_dim %c_1, dims = [3] : (tensor<1xi32>) -> tensor<1x1x1x1xi32> loc(#loc18)
    %9 = stablehlo.broadcast_in_dim %8, dims = [0, 1, 2, 3] : (tensor<1x1x1x1xi32>) -> tensor<4x8x1x1xi32> loc(#loc29)
    %10 = stablehlo.compare LE, %5, %9, SIGNED : (tensor<4x8x1x1xi32>, tensor<4x8x1x1xi32>) -> tensor<4x8x1x1xi1> loc(#loc29)
    %11 = stablehlo.and %7, %10 : tensor<4x8x1x1xi1> loc(#loc30)
    %c_3 = stablehlo.constant dense<true> : tensor<i1> loc(#loc31)
    %12 = stablehlo.reduce(%11 init: %c_3) applies stablehlo.and across dimensions = [3] : (tensor<4x8x1x1xi1>, tensor<i1>) -> tensor<4x8x1xi1> loc(#loc31)
    %13 = "stablehlo.gather"(%arg0, %5) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [2], operand_batching_dims = [0, 1], start_indices_batching_dims = [0, 1], start_index_map = [2], index_vector_dim = 3>, indices_are_sorted = false, slice_sizes = array<i64: 1, 1, 1>}> : (tensor<4x8x100xf32>, tensor<4x8x1x1xi32>) -> tensor<4x8x1xf32> loc(#loc27)
    %cst = stablehlo.constant dense<0x7FC00000> : tensor<f32> loc(#loc27)
    %14 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32> loc(#loc18)
    %15 = stablehlo.select %12, %13, %14 : tensor<4x8x1xi1>, tensor<4x8x1xf32> loc(#loc25)
    return %15, %5 : tensor<4x8x1xf32>, tensor<4x8x1x1xi32>
  }
  func.func private @take_along_axis_0(%arg0: tensor<4x8x1x1xi32>, %arg1: tensor<4x8x1xf32>) -> tensor<4x8x100xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x8x100xf32> loc(#loc18)
    %1 = "stablehlo.scatter"(%0, %arg0, %arg1) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [2], input_batching_dims = [0, 1], scatter_indices_batching_dims = [0, 1], scatter_dims_to_operand_dims = [2], index_vector_dim = 3>, unique_indices = false}> ({
    ^bb0(%arg2: tensor<f32> loc("scatter-add:"(#loc15)), %arg3: tensor<f32> loc("scatter-add:"(#loc15))):
      %2 = stablehlo.add %arg2, %arg3 : tensor<f32> loc(#loc24)
      stablehlo.return %2 : tensor<f32> loc(#loc15)
    }) : (tensor<4x8x100xf32>, tensor<4x8x1x1xi32>, tensor<4x8x1xf32>) -> tensor<4x8x100xf32> loc(#loc15)
    return %1 : tensor<4x8x100xf32>
  }
  func.func private @log_softmax_1(%arg0: tensor<4x8x100xf32>, %arg1: tensor<4x8x1xf32>, %arg2: tensor<4x8x100xf32>) -> tensor<4x8x100xf32> {
    %0 = stablehlo.negate %arg2 : tensor<4x8x100xf32> loc(#loc32)
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32> loc(#loc21)
    %1 = stablehlo.reduce(%0 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<4x8x100xf32>, tensor<f32>) -> tensor<4x8xf32> loc(#loc21)
    %2 = stablehlo.reshape %1 : (tensor<4x8xf32>) -> tensor<4x8x1xf32> loc(#loc26)
    %3 = stablehlo.divide %2, %arg1 : tensor<4x8x1xf32> loc(#loc33)
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32> loc(#loc21)
    %4 = stablehlo.reduce(%3 init: %cst_0) applies stablehlo.add across dimensions = [2] : (tensor<4x8x1xf32>, tensor<f32>) -> tensor<4x8xf32> loc(#loc21)
    %5 = stablehlo.broadcast_in_dim %4, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x100xf32> loc(#loc18)
    %6 = stablehlo.multiply %5, %arg0 : tensor<4x8x100xf32> loc(#loc34)
    %7 = stablehlo.add %arg2, %6 : tensor<4x8x100xf32> loc(#loc35)
    return %7 : tensor<4x8x100xf32>
  }
}
#loc16 = loc("reduce_max")
#loc17 = loc("max")
#loc18 = loc("broadcast_in_dim")
#loc19 = loc("sub")
#loc20 = loc("exp")
#loc21 = loc("reduce_sum")
#loc22 = loc("log")
#loc23 = loc("lt")
#loc24 = loc("add")
#loc25 = loc("select_n")
#loc26 = loc("reshape")
#loc27 = loc("gather")
#loc28 = loc("ge")
#loc29 = loc("le")
#loc30 = loc("and")
#loc31 = loc("reduce_and")
#loc32 = loc("neg")
#loc33 = loc("div")
#loc34 = loc("mul")
#loc35 = loc("add_any")
