set -euo pipefail
nproc_per_node=$1
torchrun --standalone --nnodes=1 --nproc_per_node=$nproc_per_node \
     -m verl.trainer.fsdp_sft_trainer \
    data.train_files=$HOME/data/gsm8k/train.parquet \
    data.prompt_key=extra_info \
    data.response_key=extra_info \
    +data.prompt_dict_keys=['question'] \
    +data.response_dict_keys=['answer'] \
    model.partial_pretrain=Qwen/Qwen2.5-0.5B-Instruct \
    ulysses_sequence_parallel_size=2 \
    use_remove_padding=true $@
