NGPU=8 CONFIG_FILE="./torchtitan_llama3_70b.toml" ./run_train.sh
