#loc1 = loc("p['down']")
#loc2 = loc("p['gate']")
#loc3 = loc("p['up']")
#loc4 = loc("x")
#loc17 = loc("scatter-add")
module @jit_moe attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<4x32x16xf32> loc("p['down']"), %arg1: tensor<16x4xf32> loc("p['gate']"), %arg2: tensor<4x16x32xf32> loc("p['up']"), %arg3: tensor<24x16xf32> loc("x")) -> (tensor<24x16xf32> {jax.result_info = "result"}) {
    %0 = stablehlo.dot_general %arg3, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<24x16xf32>, tensor<16x4xf32>) -> tensor<24x4xf32>
    %values, %indices = chlo.top_k(%0, k = 2) : tensor<24x4xf32> -> (tensor<24x2xf32>, tensor<24x2xi32>)
    %cst = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %1 = stablehlo.reduce(%values init: %cst) applies stablehlo.maximum across dimensions = [1] : (tensor<24x2xf32>, tensor<f32>) -> tensor<24xf32>
    %cst_0 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<24xf32>
    %3 = stablehlo.maximum %2, %1 : tensor<24xf32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [0] : (tensor<24xf32>) -> tensor<24x1xf32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [0, 1] : (tensor<24x1xf32>) -> tensor<24x2xf32>
    %6 = stablehlo.subtract %values, %5 : tensor<24x2xf32>
    %7 = stablehlo.exponential %6 : tensor<24x2xf32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %8 = stablehlo.reduce(%7 init: %cst_1) applies stablehlo.add across dimensions = [1] : (tensor<24x2xf32>, tensor<f32>) -> tensor<24xf32>
    %9 = stablehlo.broadcast_in_dim %8, dims = [0] : (tensor<24xf32>) -> tensor<24x1xf32>
    %10 = stablehlo.broadcast_in_dim %9, dims = [0, 1] : (tensor<24x1xf32>) -> tensor<24x2xf32>
    %11 = stablehlo.divide %7, %10 : tensor<24x2xf32>
    %12 = stablehlo.dot_general %arg3, %arg2, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<24x16xf32>, tensor<4x16x32xf32>) -> tensor<24x4x32xf32>
    %13 = call @silu(%12) : (tensor<24x4x32xf32>) -> tensor<24x4x32xf32>
    %14 = stablehlo.dot_general %arg0, %13, batching_dims = [0] x [1], contracting_dims = [1] x [2], precision = [DEFAULT, DEFAULT] : (tensor<4x32x16xf32>, tensor<24x4x32xf32>) -> tensor<4x16x24xf32>
    %15 = stablehlo.transpose %14, dims = [2, 0, 1] : (tensor<4x16x24xf32>) -> tensor<24x4x16xf32>
    %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %16 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<24x4xf32>
    %17 = stablehlo.iota dim = 0 : tensor<24xi32>
    %18 = stablehlo.broadcast_in_dim %17, dims = [0] : (tensor<24xi32>) -> tensor<24x1xi32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %19 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<24x1xi32>
    %20 = stablehlo.compare LT, %18, %19, SIGNED : (tensor<24x1xi32>, tensor<24x1xi32>) -> tensor<24x1xi1>
    %c_3 = stablehlo.constant dense<24> : tensor<i32>
    %21 = stablehlo.broadcast_in_dim %c_3, dims = [] : (tensor<i32>) -> tensor<24x1xi32>
    %22 = stablehlo.add %18, %21 : tensor<24x1xi32>
    %23 = stablehlo.select %20, %22, %18 : tensor<24x1xi1>, tensor<24x1xi32>
    %c_4 = stablehlo.constant dense<0> : tensor<i32>
    %24 = stablehlo.broadcast_in_dim %c_4, dims = [] : (tensor<i32>) -> tensor<24x2xi32>
    %25 = stablehlo.compare LT, %indices, %24, SIGNED : (tensor<24x2xi32>, tensor<24x2xi32>) -> tensor<24x2xi1>
    %c_5 = stablehlo.constant dense<4> : tensor<i32>
    %26 = stablehlo.broadcast_in_dim %c_5, dims = [] : (tensor<i32>) -> tensor<24x2xi32>
    %27 = stablehlo.add %indices, %26 : tensor<24x2xi32>
    %28 = stablehlo.select %25, %27, %indices : tensor<24x2xi1>, tensor<24x2xi32>
    %29 = stablehlo.broadcast_in_dim %23, dims = [0, 1] : (tensor<24x1xi32>) -> tensor<24x2xi32>
    %30 = stablehlo.broadcast_in_dim %29, dims = [0, 1] : (tensor<24x2xi32>) -> tensor<24x2x1xi32>
    %31 = stablehlo.broadcast_in_dim %28, dims = [0, 1] : (tensor<24x2xi32>) -> tensor<24x2x1xi32>
    %32 = stablehlo.concatenate %30, %31, dim = 2 : (tensor<24x2x1xi32>, tensor<24x2x1xi32>) -> tensor<24x2x2xi32>
    %33 = "stablehlo.scatter"(%16, %32, %11) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 2>, unique_indices = false}> ({
    ^bb0(%arg4: tensor<f32> loc("scatter-add:"(#loc17)), %arg5: tensor<f32> loc("scatter-add:"(#loc17))):
      %35 = stablehlo.add %arg4, %arg5 : tensor<f32>
      stablehlo.return %35 : tensor<f32>
    }) : (tensor<24x4xf32>, tensor<24x2x2xi32>, tensor<24x2xf32>) -> tensor<24x4xf32>
    %34 = stablehlo.dot_general %15, %33, batching_dims = [0] x [0], contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<24x4x16xf32>, tensor<24x4xf32>) -> tensor<24x16xf32>
    return %34 : tensor<24x16xf32>
  }
  func.func private @silu(%arg0: tensor<24x4x32xf32>) -> tensor<24x4x32xf32> {
    %0 = stablehlo.negate %arg0 : tensor<24x4x32xf32> loc(#loc19)
    %1 = stablehlo.exponential %0 : tensor<24x4x32xf32> loc(#loc20)
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32> loc(#loc21)
    %2 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<24x4x32xf32> loc(#loc22)
    %3 = stablehlo.add %2, %1 : tensor<24x4x32xf32> loc(#loc22)
    %cst_0 = stablehlo.constant dense<1.000000e+00> : tensor<f32> loc(#loc21)
    %4 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<24x4x32xf32> loc(#loc23)
    %5 = stablehlo.divide %4, %3 : tensor<24x4x32xf32> loc(#loc23)
    %6 = stablehlo.multiply %arg0, %5 : tensor<24x4x32xf32> loc(#loc24)
    return %6 : tensor<24x4x32xf32>
  }
}
#loc19 = loc("neg")
#loc20 = loc("exp")
#loc21 = loc("logistic")
#loc22 = loc("add")
#loc23 = loc("div")
#loc24 = loc("mul")
